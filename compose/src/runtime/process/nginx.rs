//! A real nginx with its stream module: bytes are carried, a backend that refuses a
//! connection is left out for a while (`max_fails=1 fail_timeout=10s`), the others
//! are backups. It has no active checks and no admin interface.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::Host;
use super::program::Program;
use super::served::{Recipe, Served};
use crate::error::{Problem, Result};
use crate::folder::LabFolder;
use crate::witness::Login;

const PACKAGES: &str = "apt install nginx-light libnginx-mod-stream, dnf install nginx \
                        nginx-mod-stream, apk add nginx nginx-mod-stream";
/// Where distributions put the module if it is not built in.
const MODULES: [&str; 4] = [
    "/usr/lib/nginx/modules/ngx_stream_module.so",
    "/usr/lib64/nginx/modules/ngx_stream_module.so",
    "/usr/share/nginx/modules/ngx_stream_module.so",
    "/usr/local/libexec/nginx/ngx_stream_module.so",
];

/// Finds the program.
pub fn find(host: &Host) -> Result<PathBuf> {
    super::find::find(&host.named, &["nginx"], PACKAGES)
}

/// The configuration file. One process, so that what is done to it is done to all
/// of it.
pub fn config(
    port: u16,
    backends: &[(String, SocketAddr)],
    place: &Path,
    module: Option<&Path>,
) -> String {
    let mut text = String::new();
    if let Some(module) = module {
        writeln!(text, "load_module {};", module.display()).expect("a String takes everything");
    }
    write!(
        text,
        "daemon off;\nmaster_process off;\npid {}/pid;\nerror_log stderr warn;\n\n\
         events {{\n    worker_connections 4096;\n}}\n\n\
         stream {{\n    upstream mysql {{\n",
        place.display()
    )
    .expect("a String takes everything");
    for (index, (_, address)) in backends.iter().enumerate() {
        let role = if index == 0 {
            " max_fails=1 fail_timeout=10s"
        } else {
            " backup"
        };
        writeln!(text, "        server {address}{role};").expect("a String takes everything");
    }
    write!(
        text,
        "    }}\n    server {{\n        listen 127.0.0.1:{port};\n        \
         proxy_connect_timeout 5s;\n        proxy_timeout 30s;\n        proxy_pass mysql;\n    \
         }}\n}}\n"
    )
    .expect("a String takes everything");
    text
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
    let version = version(&program);
    let place = Served::place(host, folder, name)?;
    let module = MODULES.iter().map(Path::new).find(|path| path.exists());
    let (of_config, of_args) = (place.clone(), place.clone());
    let backends = backends.to_vec();
    let recipe = Recipe {
        program,
        called: "nginx".to_owned(),
        label: format!("nginx {version}"),
        file: "nginx.conf".to_owned(),
        config: Box::new(move |port| config(port, &backends, &of_config, module)),
        args: Box::new(move |_, file, _| {
            let words: [OsString; 6] = [
                "-p".into(),
                of_args.clone().into(),
                "-c".into(),
                file.into(),
                "-e".into(),
                "stderr".into(),
            ];
            words.to_vec()
        }),
        tell: None,
    };
    let started = Served::start(host, folder, name, place, recipe, login).await;
    let served = started.map_err(|problem| {
        if problem.what.contains("unknown directive \"stream\"") {
            Problem::new(problem.what)
                .hint("its stream module is missing: apt install libnginx-mod-stream")
        } else {
            problem
        }
    })?;
    Ok(Program {
        served,
        admin: None,
        no_drain: "nginx has no admin interface (its commercial edition has)",
    })
}

/// It says its version on standard error.
fn version(program: &Path) -> String {
    let output = std::process::Command::new(program).arg("-v").output();
    output
        .map(|output| String::from_utf8_lossy(&output.stderr).into_owned())
        .unwrap_or_default()
        .trim()
        .rsplit('/')
        .next()
        .unwrap_or_default()
        .chars()
        .take(40)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_written() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let text = config(
            6001,
            &[("a".to_owned(), at(4001)), ("b".to_owned(), at(4002))],
            Path::new("/lab"),
            Some(Path::new("/m.so")),
        );
        insta::assert_snapshot!(text, @r"
        load_module /m.so;
        daemon off;
        master_process off;
        pid /lab/pid;
        error_log stderr warn;

        events {
            worker_connections 4096;
        }

        stream {
            upstream mysql {
                server 127.0.0.1:4001 max_fails=1 fail_timeout=10s;
                server 127.0.0.1:4002 backup;
            }
            server {
                listen 127.0.0.1:6001;
                proxy_connect_timeout 5s;
                proxy_timeout 30s;
                proxy_pass mysql;
            }
        }
        ");
    }
}
