//! A lab of real programs, for tests that drive it step by step.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use gapscope_lab::children::Itself;
use gapscope_lab::lab::{Lab, Make};
use gapscope_lab::runtime::process::find;
use gapscope_lab::scenario::{Action, BackendKind, RuntimeKind, Scenario};
use gapscope_lab::timeline::Due;
use gapscope_proto::clock::SystemClock;

/// Whether MariaDB and HAProxy are there; says so where one is not.
#[expect(clippy::print_stdout, reason = "a test says that it was skipped")]
pub fn are_installed() -> bool {
    let none = find::Named::new();
    for names in [&["mariadbd", "mysqld"][..], &["haproxy"]] {
        if find::find(&none, names, "").is_err() {
            println!("skipped: {} is not installed", names[0]);
            return false;
        }
    }
    true
}

/// Brings up what the scenario's text asks for, with MariaDB as the backends.
pub async fn up(scenario: &str) -> Lab {
    let scenario = Scenario::parse("the test's.toml", scenario).expect("a scenario");
    Lab::up(
        Make {
            scenario: &scenario,
            runtime: RuntimeKind::Process,
            hurt_others: false,
            backend: BackendKind::Mariadb,
            itself: Itself::at(env!("CARGO_BIN_EXE_gapscope-lab")),
            named: find::Named::new(),
            clock: Arc::new(SystemClock::new()),
        },
        |_| (),
    )
    .await
    .expect("the lab comes up")
}

/// An agent's configuration with one target, `haproxy`, reached at `address`.
pub fn agent_config(lab: &Lab, folder: &Path, address: SocketAddr) -> String {
    let secret = folder.join("password");
    std::fs::write(&secret, &lab.login.password).expect("the password is written");
    format!(
        "[[target]]\nname = \"haproxy\"\naddress = \"{address}\"\nuser = \"{}\"\npassword_file = \"{}\"\n",
        lab.login.user,
        secret.display()
    )
}

/// The fault on the first backend, `db-1`, now.
pub fn now(action: Action) -> Due {
    Due {
        at_ns: 0,
        action,
        subject: "db-1".into(),
        grace_ns: None,
        lasts_ns: None,
        to: None,
        is_restart: false,
    }
}
