//! `check`: reaches each target once and says what a run would meet there.

use std::sync::Arc;
use std::time::Duration;

use gapscope_proto::clock::SystemClock;
use gapscope_proto::tls::{ClientFiles, Dialer};

use crate::cli::Failure;
use crate::config::{Config, Target};
use crate::output;
use crate::probe::endpoint::Endpoint;
use crate::probe::identity::Form;
use crate::probe::leash::Graveyard;
use crate::trial::{self, witness};
use crate::uplink::trial::try_out;

/// Width of what stands before each line's text.
const LABEL: usize = 13;
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
            Ok(lines) => lines.iter().for_each(|line| say(line)),
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

/// A line with its label, within the terminal's width.
fn say(line: &str) {
    let (label, text) = line.split_at_checked(LABEL).unwrap_or((line, ""));
    let width = output::columns().unwrap_or(80).max(60);
    let label = format!("  {label}");
    output::data(&output::wrapped(&label, 2 + LABEL, text, width));
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
    let endpoint = Arc::new(Endpoint::new(target.clone(), clock));
    let seen = witness::look(&endpoint, clock, graveyard, LIMIT)
        .await
        .map_err(|failed| {
            let mut failure = Failure::new(format!(
                "target `{}` at {}: {}",
                target.name,
                target.address(),
                trial::in_words(&failed.verdict)
            ));
            failure.hint =
                trial::hint(&failed.verdict, target, failed.greeting.as_ref()).map(str::to_owned);
            failure
        })?;
    let found = trial::conclude(&seen, &trial::Facts::default());
    let mut lines = vec![
        format!(
            "reached      {}, TCP and login took {:.1} ms",
            seen.peer,
            seen.connect_ns as f64 / 1e6
        ),
        format!("answers as   {}", seen.answer.version),
        format!("backend      {}", seen.answer.backend),
        format!(
            "identity     {}",
            match seen.identity.form {
                Form::Given => format!("as configured: {}", seen.identity.expression),
                Form::InformationSchema => "information_schema.GLOBAL_VARIABLES".to_owned(),
                Form::PerformanceSchema => "performance_schema.global_variables".to_owned(),
                Form::SystemVariables => "@@hostname and @@port".to_owned(),
            }
        ),
    ];
    if seen.addresses.len() > 1 {
        let all: Vec<_> = seen.addresses.iter().map(ToString::to_string).collect();
        lines.push(format!("addresses    {}", all.join(", ")));
    }
    if let Some(caveat) = seen.identity.caveat() {
        lines.push(format!("caveat       {caveat}"));
    }
    lines.push(format!("what it is   {}", found.what));
    lines.extend(
        found
            .because
            .iter()
            .map(|why| format!("  because    {why}")),
    );
    lines.push(match (&seen.tls, seen.greeting.as_ref()) {
        (Some(tls), _) => {
            let server = match seen.server_tls.as_deref() {
                Ok("") => "; by the server's word it sees none",
                _ => "",
            };
            format!("TLS          {} {}{server}", tls.version, tls.cipher)
        }
        (None, Some(greeting)) if greeting.offers_tls => {
            "TLS          offered, not used".to_owned()
        }
        _ => "TLS          none".to_owned(),
    });
    if (seen.again.id, &seen.again.backend) != (seen.answer.id, &seen.answer.backend) {
        lines.push(format!(
            "multiplexed  a second statement was answered by {} with id {}",
            seen.again.backend, seen.again.id
        ));
    }
    match &seen.grants {
        Err(why) => lines.push(format!("grants       not shown: {why}")),
        Ok(grants) => lines.extend(grant_lines(grants)),
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
