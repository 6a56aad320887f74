//! The table that the default statement reads: made, and removed again whatever
//! happens in between.

use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Opts};

use super::statement::create;
use crate::error::{Problem, Result};
use crate::output;

/// How long making or removing it may take.
const WITHIN: Duration = Duration::from_secs(15);

/// A table that was made here.
#[derive(Debug)]
pub struct MadeTable {
    opts: Opts,
    name: String,
    place: String,
}

impl MadeTable {
    /// Makes `name` at `opts`, with its rows. A table of that name that is there
    /// already is never touched.
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn make(opts: &Opts, name: &str, place: &str) -> Result<Self> {
        let failed = |error: Error| {
            Problem::new(format!(
                "cannot make table `{name}` at {place} for the benchmark: {error}"
            ))
            .hint(
                "the user needs CREATE, INSERT, SELECT and DROP on the database; without \
                 --create-table a statement without a table is measured",
            )
        };
        let making = Self::make_untimed(opts, name, place);
        match tokio::time::timeout(WITHIN, making).await {
            Ok(made) => made.map_err(failed),
            // Whether it was made is not known; a table of that name is only ours.
            Err(_) => {
                let table = Self {
                    opts: opts.clone(),
                    name: name.to_owned(),
                    place: place.to_owned(),
                };
                table.remove().await;
                Err(Problem::new(format!(
                    "{place} did not make table `{name}` within {} s",
                    WITHIN.as_secs()
                )))
            }
        }
    }

    async fn make_untimed(
        opts: &Opts,
        name: &str,
        place: &str,
    ) -> std::result::Result<Self, Error> {
        let mut conn = Conn::new(opts.clone()).await?;
        let [in_memory, insert] = create(name, true);
        let [plain, _] = create(name, false);
        let made = match conn.query_drop(in_memory).await {
            Ok(()) => Ok(()),
            // Other engines are refused with several codes; "exists" is not one.
            Err(Error::Server(error)) if error.code != 1050 => conn.query_drop(plain).await,
            Err(error) => Err(error),
        };
        made?;
        let table = Self {
            opts: opts.clone(),
            name: name.to_owned(),
            place: place.to_owned(),
        };
        if let Err(error) = conn.query_drop(insert).await {
            table.remove().await;
            return Err(error);
        }
        // An error on the way out changes nothing.
        let _ = conn.disconnect().await;
        Ok(table)
    }

    /// Removes it; what cannot be removed is said.
    pub async fn remove(self) {
        let removing = async {
            let mut conn = Conn::new(self.opts.clone()).await?;
            conn.query_drop(format!("DROP TABLE IF EXISTS {}", self.name))
                .await?;
            conn.disconnect().await
        };
        let why = match tokio::time::timeout(WITHIN, removing).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", WITHIN.as_secs()),
        };
        output::say(&format!(
            "warning: table `{}` may be left at {}: {why}; remove it with DROP TABLE {}",
            self.name, self.place, self.name
        ));
    }
}
