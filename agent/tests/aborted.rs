//! The one way known in which a target can end an agent: it announces more columns
//! than any memory holds, the driver asks for that memory at once, and a process
//! that is refused memory is aborted. Nothing that was measured is lost by it, and
//! the agent that is started again goes on with the run.

mod support;

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gapscope_proto::host::HostRecord;
use gapscope_proto::plan::ClientKind;
use gapscope_proto::sample::Style;
use support::{Aggregator, Behaviour, Manners, Server, group, plan};

struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(url: &str, data: &Path, server: &Server) -> Agent {
    let child = Command::new(env!("CARGO_BIN_EXE_gapscope-agent"))
        .args(["run", "--agent-id", "agent-1", "--aggregator", url])
        .args([
            "--target",
            &format!("db={}@{}", server.user, server.address),
        ])
        // So that every statement is a probe.
        .args([
            "--identity",
            "whoami()",
            "--no-inspect",
            "--die-with-parent",
        ])
        .arg("--data")
        .arg(data)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    Agent(child)
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), wait).await;
    assert!(waited.is_ok(), "{what} has not come about");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_aborted_loses_nothing_and_goes_on() {
    let server = Server::with_tickets();
    let clients = 3;
    let plan = plan(
        3_600_000,
        vec![group("db", Style::Reused, ClientKind::Bare, 0, clients, 10)],
    );
    let run = plan.run_id;
    let data = tempfile::tempdir().expect("a folder");
    let mut aggregator = Aggregator::start_with(
        Manners {
            plan: Some(plan),
            ..Manners::default()
        },
        Arc::default(),
    )
    .await;
    let answers = |server: &Server| server.answers.load(Ordering::SeqCst);
    let mut agent = start(&aggregator.url, data.path(), &server);
    until("answers", || answers(&server) >= 100).await;
    server.now(Behaviour::BeyondMemory);
    let mut status = None;
    until("the end of the agent", || {
        status = agent.0.try_wait().expect("a child");
        status.is_some()
    })
    .await;
    // SIGABRT. If this fails the driver has learned better: say so in the docs.
    assert_eq!(status.and_then(|s| s.signal()), Some(6), "{status:?}");
    let before = answers(&server);
    server.now(Behaviour::Answers);
    let agent = start(&aggregator.url, data.path(), &server);
    until("answers", || answers(&server) >= before + 50).await;
    let pid = rustix::process::Pid::from_child(&agent.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    aggregator
        .until("the end of the second life", |a| a.has_ended(run))
        .await;
    aggregator
        .until("all samples", |a| {
            let sampled = a.host.values().find_map(|records| match records.last() {
                Some(HostRecord::Ended(ended)) => Some(ended.sampled),
                _ => None,
            });
            let ends = a
                .host
                .iter()
                .find(|(_, records)| matches!(records.last(), Some(HostRecord::Ended(_))));
            let (Some(sampled), Some((host, _))) = (sampled, ends) else {
                return false;
            };
            let of_that_life = a
                .samples
                .iter()
                .filter(|(s, _)| s.incarnation == host.incarnation);
            of_that_life
                .map(|(_, samples)| samples.len() as u64)
                .sum::<u64>()
                == sampled
        })
        .await;
    drop(agent);
    let arrived = aggregator.stop();
    let arrived = arrived.lock().expect("not poisoned");
    assert_eq!(arrived.losses, []);
    // Two lives, and only the second one says how it ended: that is how a report
    // knows that the first one died.
    assert_eq!(arrived.host.len(), 2);
    let ended = arrived
        .host
        .values()
        .filter(|records| matches!(records.last(), Some(HostRecord::Ended(_))));
    assert_eq!(ended.count(), 1);
    let mut stored = BTreeSet::new();
    for samples in arrived.samples.values() {
        let seqs: Vec<u64> = samples.iter().map(|(seq, _)| *seq).collect();
        assert_eq!(seqs, (1..=samples.len() as u64).collect::<Vec<_>>());
        for (_, sample) in samples {
            if let Some(ticket) = sample.connection_id {
                assert!(stored.insert(ticket), "answer {ticket} is stored twice");
            }
        }
    }
    let tickets = server.tickets.as_ref().expect("asked for");
    let given = tickets.lock().expect("not poisoned").len();
    // What a client had in its hands when the process ended, and what the writer
    // had not been told of.
    let missing = given - stored.len();
    assert!(missing <= 10 * usize::from(clients), "{missing} of {given}");
}
