//! HAProxy's stats socket: one command a connection, an answer until the end.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use crate::runtime::{Belief, Beliefs, Viewer};

/// An answer is read up to this; `show stat` of a lab has some kilobytes.
const MAX_ANSWER: u64 = 1 << 20;
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// Where the socket is.
#[derive(Debug, Clone)]
pub enum Place {
    /// In a file.
    File(PathBuf),
    /// On a port, as in a container.
    Port(SocketAddr),
}

async fn talk(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    command: &str,
) -> io::Result<String> {
    stream.write_all(format!("{command}\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER).read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Asks one thing.
async fn ask(place: &Place, command: &str) -> io::Result<String> {
    let asking = async {
        match place {
            Place::File(path) => talk(UnixStream::connect(path).await?, command).await,
            Place::Port(address) => talk(TcpStream::connect(address).await?, command).await,
        }
    };
    tokio::time::timeout(ANSWERS_WITHIN, asking)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Held clients stay where they are; new ones go elsewhere.
pub(super) async fn drain(place: &Place, backend: &str, on: bool) -> Result<String, String> {
    let state = if on { "drain" } else { "ready" };
    let command = format!("set server mysql/{backend} state {state}");
    // It answers a state that it took with an empty line.
    match ask(place, &command).await {
        Ok(answer) if answer.trim().is_empty() => Ok(command),
        Ok(answer) => Err(format!("it refused `{command}`: {}", answer.trim())),
        Err(error) => Err(error.to_string()),
    }
}

/// Reads what HAProxy believes of its servers.
pub(super) struct StatViewer {
    place: Place,
}

impl StatViewer {
    pub(super) fn new(place: Place) -> Self {
        Self { place }
    }
}

impl Viewer for StatViewer {
    fn look(&mut self) -> BoxFuture<'_, Beliefs> {
        async move {
            let text = ask(&self.place, "show stat")
                .await
                .map_err(|error| error.to_string())?;
            Ok(beliefs(&text))
        }
        .boxed()
    }
}

/// The servers in the answer to `show stat`: comma-separated, columns named by
/// the first line, which begins with `# `.
pub(super) fn beliefs(text: &str) -> Vec<Belief> {
    let mut lines = text.lines();
    let names: Vec<&str> = lines
        .next()
        .unwrap_or_default()
        .trim_start_matches("# ")
        .split(',')
        .collect();
    let column = |name: &str| names.iter().position(|known| *known == name);
    let (Some(server), Some(state)) = (column("svname"), column("status")) else {
        return Vec::new();
    };
    let (check, code, sessions) = (column("check_status"), column("last_chk"), column("scur"));
    lines
        .filter_map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            let field = |at: Option<usize>| at.and_then(|at| fields.get(at)).copied();
            let backend = field(Some(server))?;
            if matches!(backend, "FRONTEND" | "BACKEND" | "") {
                return None;
            }
            let said: Vec<&str> = [field(check), field(code)]
                .into_iter()
                .flatten()
                .filter(|text| !text.is_empty())
                .collect();
            Some(Belief {
                backend: backend.to_owned(),
                state: field(Some(state))?.to_owned(),
                check: said.join(" "),
                sessions: field(sessions).and_then(|text| text.parse().ok()),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_from_show_stat() {
        let text = "# pxname,svname,scur,status,check_status,last_chk,\n\
                    mysql,FRONTEND,9,OPEN,,,\n\
                    mysql,backend-1,0,DOWN 1/2,* L4CON,Connection refused,\n\
                    mysql,backend-2,7,UP,L4OK,,\n\
                    mysql,BACKEND,7,UP,,,\n\n";
        let found = beliefs(text);
        assert_eq!(
            found,
            [
                Belief {
                    backend: "backend-1".to_owned(),
                    state: "DOWN 1/2".to_owned(),
                    check: "* L4CON Connection refused".to_owned(),
                    sessions: Some(0),
                },
                Belief {
                    backend: "backend-2".to_owned(),
                    state: "UP".to_owned(),
                    check: "L4OK".to_owned(),
                    sessions: Some(7),
                },
            ]
        );
        assert!(beliefs("").is_empty());
        assert!(beliefs("garbage\nmore,garbage\n").is_empty());
    }
}
