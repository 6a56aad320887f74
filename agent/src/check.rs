//! `check`: reaches each target once and says what a run would meet there.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use gapscope_proto::clock::{Clock, SystemClock};
use gapscope_proto::sample::Phase;
use gapscope_proto::tls::{ClientFiles, Dialer};
use mysql_async::prelude::Queryable;
use tokio_util::sync::CancellationToken;

use crate::cli::Failure;
use crate::config::{Config, Target};
use crate::outcome::{self, Verdict};
use crate::output;
use crate::probe::answer::{Ask, ask};
use crate::probe::identity::Form;
use crate::probe::leash::{self, Ended, Graveyard};
use crate::probe::mysql::{Endpoint, connect, resolve};
use crate::uplink::trial::try_out;

const LIMIT: Duration = Duration::from_secs(5);

/// Privileges with which a user could change something.
const WRITING: [&str; 12] = [
    "ALL PRIVILEGES",
    "INSERT",
    "UPDATE",
    "DELETE",
    "CREATE",
    "DROP",
    "ALTER",
    "SUPER",
    "FILE",
    "TRIGGER",
    "EXECUTE",
    "SHUTDOWN",
];

pub(crate) async fn check(config: &Config) -> Result<(), Failure> {
    if config.targets.is_empty() {
        return Err(Failure {
            message: "no target is given".into(),
            hint: Some("give --target NAME=USER@HOST:PORT or --config FILE".into()),
            code: 2,
        });
    }
    let graveyard = Graveyard::open()
        .map_err(|error| Failure::new(format!("a thread cannot be started: {error}")))?;
    let clock = SystemClock::new();
    let mut failed = Vec::new();
    for target in &config.targets {
        output::data(&format!(
            "{} ({} as {}{})",
            target.name,
            target.address(),
            target.user,
            if target.password.is_empty() {
                ", no password"
            } else {
                ""
            }
        ));
        match look(target, &clock, &graveyard).await {
            Ok(lines) => lines
                .iter()
                .for_each(|line| output::data(&format!("  {line}"))),
            Err(failure) => {
                output::error(&failure.message, failure.hint.as_deref());
                failed.push(target.name.as_str());
            }
        }
    }
    output::data("probing is read-only: one SELECT a probe");
    let is_let_in = reach(config).await;
    if failed.is_empty() {
        match is_let_in {
            true => Ok(()),
            false => Err(Failure::new("the aggregator cannot be used")),
        }
    } else {
        Err(Failure::new(format!(
            "{} of {} targets cannot be probed: {}",
            failed.len(),
            config.targets.len(),
            failed.join(", ")
        )))
    }
}

/// Whether the aggregator lets this agent in; asked only where somebody has said
/// how it is to show itself.
async fn reach(config: &Config) -> bool {
    if config.security == ClientFiles::default() {
        return true;
    }
    let clock = Arc::new(SystemClock::new());
    output::data(&format!("aggregator {}", config.aggregator));
    let tried = match Dialer::new(&config.aggregator, &config.security, clock.clone()) {
        Ok(dialer) => try_out(&dialer, &config.agent_id, &*clock).await,
        Err(trouble) => Err(trouble),
    };
    match tried {
        Ok(lines) => {
            for line in lines {
                output::data(&format!("  {line}"));
            }
            true
        }
        Err(trouble) => {
            output::error(&trouble.what, trouble.hint.as_deref());
            false
        }
    }
}

async fn look(
    target: &Target,
    clock: &SystemClock,
    graveyard: &Graveyard,
) -> Result<Vec<String>, Failure> {
    let never = CancellationToken::new();
    let endpoint = Arc::new(Endpoint::new(target.clone(), clock));
    let fail = |verdict: Verdict| failure_of(target, &verdict);
    let addresses = match target.host.parse::<IpAddr>() {
        Ok(ip) => vec![SocketAddr::new(ip, target.port)],
        Err(_) => {
            let (host, port) = (target.host.clone(), target.port);
            let lookup = Box::pin(async move { resolve(&host, port).await });
            match leash::run(lookup, Some(LIMIT), &never, graveyard).await {
                Ended::Done(Ok(addresses)) => addresses,
                Ended::Done(Err(error)) => return Err(fail(outcome::of_resolve_error(&error))),
                other => return Err(fail(cut(&other, Phase::Resolve))),
            }
        }
    };
    let begun_ns = clock.raw_ns();
    let for_connect = endpoint.clone();
    let connecting = Box::pin(async move { connect(&for_connect, &addresses).await });
    let (peer, mut conn) = match leash::run(connecting, Some(LIMIT), &never, graveyard).await {
        Ended::Done((peer, Ok(conn))) => (peer, conn),
        Ended::Done((_, Err(error))) => {
            return Err(fail(outcome::of_driver_error(&error, Phase::Connect)));
        }
        other => return Err(fail(cut(&other, Phase::Connect))),
    };
    let connect_ms = (clock.raw_ns() - begun_ns) as f64 / 1e6;
    let handshake_id = conn.id();
    let cell = endpoint.identity.clone();
    let asking = Box::pin(async move {
        let result = async {
            let identity = cell.settle(&mut conn).await?;
            let asked = ask(&mut conn, &identity.bare).await?;
            let again = ask(&mut conn, &identity.bare).await?;
            let grants: Result<Vec<String>, _> = conn.query("SHOW GRANTS").await;
            Ok::<_, mysql_async::Error>((identity, asked, again, grants))
        }
        .await;
        let _ = conn.disconnect().await;
        result
    });
    let (identity, asked, again, grants) =
        match leash::run(asking, Some(LIMIT), &never, graveyard).await {
            Ended::Done(Ok(all)) => all,
            Ended::Done(Err(error)) => {
                return Err(fail(outcome::of_driver_error(&error, Phase::Query)));
            }
            other => return Err(fail(cut(&other, Phase::Query))),
        };
    let answer = match asked {
        Ask::Answer(answer) => answer,
        Ask::WrongShape(why) => return Err(fail(outcome::of_wrong_shape(&why))),
    };
    let mut lines = vec![
        format!("reached      {peer}, TCP and login took {connect_ms:.1} ms"),
        format!("answers as   {}", answer.version),
        format!("backend      {}", answer.backend),
        format!(
            "identity     {}",
            match identity.form {
                Form::Given => format!("as configured: {}", identity.expression),
                Form::InformationSchema => "information_schema.GLOBAL_VARIABLES".to_owned(),
                Form::PerformanceSchema => "performance_schema.global_variables".to_owned(),
                Form::SystemVariables => "@@hostname and @@port".to_owned(),
            }
        ),
    ];
    if let Some(caveat) = identity.caveat() {
        lines.push(format!("caveat       {caveat}"));
    }
    lines.push(if u64::from(handshake_id) == answer.id {
        format!("connection   id {handshake_id}, the same in the greeting and in CONNECTION_ID()")
    } else {
        format!(
            "connection   id {handshake_id} in the greeting, {} in CONNECTION_ID(): something between answers for the server",
            answer.id
        )
    });
    if let Ask::Answer(again) = again
        && (again.id, &again.backend) != (answer.id, &answer.backend)
    {
        lines.push(format!(
            "multiplexed  a second statement was answered by {} with id {}",
            again.backend, again.id
        ));
    }
    match grants {
        Err(error) => lines.push(format!("grants       not shown: {error}")),
        Ok(grants) => lines.extend(grant_lines(&grants)),
    }
    Ok(lines)
}

/// The grants without password hashes, and whether they let one write.
fn grant_lines(grants: &[String]) -> Vec<String> {
    let shown: Vec<_> = grants
        .iter()
        .map(|grant| {
            let cut = grant.find(" IDENTIFIED ").unwrap_or(grant.len());
            grant[..cut].to_owned()
        })
        .collect();
    let mut lines: Vec<_> = shown
        .iter()
        .map(|grant| format!("grants       {grant}"))
        .collect();
    let may_write = shown.iter().any(|grant| {
        let privileges = grant.split(" ON ").next().unwrap_or_default();
        WRITING.iter().any(|word| {
            privileges
                .trim_start_matches("GRANT ")
                .split(", ")
                .any(|privilege| privilege.starts_with(word))
        })
    });
    if may_write {
        lines.push(
            "note         this user may write; probing does not, and a user with USAGE alone is enough"
                .to_owned(),
        );
    }
    lines
}

fn cut<T>(ended: &Ended<T>, phase: Phase) -> Verdict {
    match ended {
        Ended::Panicked(text) => outcome::of_panic(phase, text),
        _ => outcome::of_timeout(phase, u64::try_from(LIMIT.as_nanos()).unwrap_or(u64::MAX)),
    }
}

/// Other protocols' first bytes read as a packet's length and number.
fn is_not_its_protocol(verdict: &Verdict) -> bool {
    let text = &verdict.text;
    verdict.cause == Some(gapscope_proto::sample::Cause::Malformed)
        || text.contains("max_allowed_packet")
        || text.contains("out of sync")
}

fn failure_of(target: &Target, verdict: &Verdict) -> Failure {
    use gapscope_proto::sample::Cause;
    let verdict = verdict.clone().without(target.password.expose());
    let cause = verdict.cause.map_or("unknown", Cause::as_str);
    let code = verdict
        .code
        .map(|code| format!(" {code}"))
        .unwrap_or_default();
    let mut failure = Failure::new(format!(
        "target `{}` at {}: {}{code} ({cause}): {}",
        target.name,
        target.address(),
        verdict.outcome,
        verdict.text
    ));
    failure.hint = match verdict.cause {
        Some(Cause::Refused) => Some("is the server or proxy running, and is this its port?"),
        Some(Cause::Denied) => Some("check the user, and password_env or password_file"),
        Some(Cause::NotResolved) => Some("check the host name"),
        Some(Cause::ConnectTimeout) => {
            Some("something swallows the connection: a firewall, a server that hangs, or one that is not MySQL and waits to be spoken to")
        }
        Some(Cause::HostBlocked) => Some("FLUSH HOSTS on the server lifts the block"),
        Some(Cause::WrongShape) => {
            Some("the identity expression must give one value that is not NULL")
        }
        _ if is_not_its_protocol(&verdict) => {
            Some("what answers there may not be a MySQL or MariaDB server: is this its port?")
        }
        _ => None,
    }
    .map(str::to_owned);
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_are_shown_without_hashes() {
        let lines = grant_lines(&[
            "GRANT USAGE ON *.* TO `probe`@`%` IDENTIFIED BY PASSWORD '*ABC'".to_owned(),
        ]);
        assert_eq!(lines, ["grants       GRANT USAGE ON *.* TO `probe`@`%`"]);
        let lines = grant_lines(&["GRANT SELECT, INSERT ON `shop`.* TO `app`@`%`".to_owned()]);
        assert!(lines[1].contains("may write"), "{lines:?}");
        let lines = grant_lines(&["GRANT SELECT ON `updates`.* TO `app`@`%`".to_owned()]);
        assert_eq!(lines.len(), 1);
    }
}
