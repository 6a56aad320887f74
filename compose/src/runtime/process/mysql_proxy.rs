//! The old MySQL Proxy, with a Lua script of our own: new clients go to the first
//! server that it does not hold for down. It finds a server down when it cannot
//! connect, and tries it again after some seconds.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::program::Program;
use super::served::{Recipe, Served};
use super::{Host, version_of};
use crate::error::Result;
use crate::folder::LabFolder;
use crate::witness::Login;

const PACKAGES: &str = "it is not in current distributions; its sources are public";

/// The script: `--proxy-lua-script`.
pub const SCRIPT: &str = "\
-- Sends each new client to the first backend that is not held for down.
function connect_server()
    for index = 1, #proxy.global.backends do
        if proxy.global.backends[index].state ~= proxy.BACKEND_STATE_DOWN then
            proxy.connection.backend_ndx = index
            return
        end
    end
end
";

/// Finds the program.
pub fn find(host: &Host) -> Result<PathBuf> {
    super::find::find(&host.named, &["mysql-proxy"], PACKAGES)
}

fn args(script: &std::path::Path, port: u16, backends: &[(String, SocketAddr)]) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec![
        "--plugins=proxy".into(),
        format!("--proxy-address=127.0.0.1:{port}").into(),
    ];
    for (_, at) in backends {
        words.push(format!("--proxy-backend-addresses={at}").into());
    }
    let mut lua = OsString::from("--proxy-lua-script=");
    lua.push(script);
    words.push(lua);
    words
}

/// Starts it and waits until a real login goes through it.
pub async fn start(
    host: &Host,
    folder: &LabFolder,
    name: &str,
    backends: &[(String, SocketAddr)],
    login: &Login,
) -> Result<Program> {
    let program = find(host)?;
    let version = version_of(&program, "--version");
    let place = Served::place(host, folder, name)?;
    let recipe = Recipe {
        program,
        called: "mysql-proxy".to_owned(),
        label: format!("mysql-proxy {version}"),
        file: "prefer-first.lua".to_owned(),
        config: Box::new(|_| SCRIPT.to_owned()),
        args: {
            let backends = backends.to_vec();
            Box::new(move |_, file, port| args(file, port, &backends))
        },
        tell: None,
    };
    let served = Served::start(host, folder, name, place, recipe, login).await?;
    Ok(Program {
        served,
        admin: None,
        no_drain: "mysql-proxy's admin plugin only shows its backends",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_written() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let words = args(
            std::path::Path::new("/lab/prefer-first.lua"),
            4040,
            &[("a".to_owned(), at(4001)), ("b".to_owned(), at(4002))],
        );
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        assert_eq!(
            words,
            [
                "--plugins=proxy",
                "--proxy-address=127.0.0.1:4040",
                "--proxy-backend-addresses=127.0.0.1:4001",
                "--proxy-backend-addresses=127.0.0.1:4002",
                "--proxy-lua-script=/lab/prefer-first.lua",
            ]
        );
    }
}
