//! The table that the default statement reads: made, and removed again whatever
//! happens in between.

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Opts};

use super::statement::create;
use crate::error::{Problem, Result};
use crate::output;

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
        let mut conn = Conn::new(opts.clone()).await.map_err(failed)?;
        let [in_memory, insert] = create(name, true);
        let [plain, _] = create(name, false);
        let made = match conn.query_drop(in_memory).await {
            Ok(()) => Ok(()),
            // Other engines are refused with several codes; "exists" is not one.
            Err(Error::Server(error)) if error.code != 1050 => conn.query_drop(plain).await,
            Err(error) => Err(error),
        };
        made.map_err(failed)?;
        let table = Self {
            opts: opts.clone(),
            name: name.to_owned(),
            place: place.to_owned(),
        };
        if let Err(error) = conn.query_drop(insert).await {
            table.remove().await;
            return Err(failed(error));
        }
        // An error on the way out changes nothing.
        let _ = conn.disconnect().await;
        Ok(table)
    }

    /// Removes it; what cannot be removed is said.
    pub async fn remove(self) {
        let removing = async {
            let mut conn = Conn::new(self.opts.clone()).await?;
            conn.query_drop(format!("DROP TABLE {}", self.name)).await?;
            conn.disconnect().await
        };
        if let Err(error) = removing.await {
            output::say(&format!(
                "warning: table `{}` is left at {}: {error}; remove it with DROP TABLE {}",
                self.name, self.place, self.name
            ));
        }
    }
}
