//! Whether runs were measured alike. Pure.

use std::collections::BTreeMap;

use crate::overhead::record::Bench;
use crate::store::manifest::Manifest;

/// How a run was measured: by what each thing is called.
pub type Conditions = BTreeMap<String, String>;

/// Something that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Differs {
    /// What.
    pub what: String,
    /// On the first side.
    pub first: String,
    /// On the other.
    pub other: String,
}

/// The names of tables made for one benchmark end in a random number.
fn without_random_table(statement: &str) -> String {
    let mut text = statement.to_owned();
    let prefix = "gapscope_overhead_";
    while let Some(at) = text.find(prefix) {
        let tail = at + prefix.len();
        let end = text[tail..]
            .find(|c: char| !c.is_ascii_hexdigit())
            .map_or(text.len(), |n| tail + n);
        text.replace_range(at + prefix.len() - 1..end, "");
    }
    text
}

/// A benchmark's conditions.
pub fn of_bench(bench: &Bench) -> Conditions {
    let m = &bench.manifest;
    let put = |key: &str, value: String| (key.to_owned(), value);
    Conditions::from([
        put("kind of run", m.kind.clone()),
        put("statement", without_random_table(&m.statement)),
        put("protocol", m.protocol.clone()),
        put("connection for each statement", m.connect_each.to_string()),
        put("statements of a block", m.statements.to_string()),
        put("load", format!("{:?}", m.load)),
        put("host", m.host.hostname.clone()),
        put("processors", m.host.cpus.to_string()),
        put(
            "direct target",
            m.targets
                .iter()
                .find(|t| t.role == crate::overhead::record::Role::Direct)
                .map_or_else(String::new, |t| t.name.clone()),
        ),
    ])
}

/// A switchover run's conditions; `steps` as `step subject`, in order.
pub fn of_run(manifest: &Manifest, steps: &[String]) -> Conditions {
    let plan = &manifest.plan;
    let put = |key: &str, value: String| (key.to_owned(), value);
    let mut conditions = Conditions::from([
        put("kind of run", "switchover".to_owned()),
        put("scenario", plan.scenario.clone()),
        put("deadline", format!("{} ms", plan.deadline_ns as f64 / 1e6)),
        put("duration", format!("{} s", plan.duration_ns as f64 / 1e9)),
        put("steps", steps.join(", ")),
    ]);
    let mut hosts: Vec<&str> = manifest
        .agents
        .iter()
        .map(|agent| agent.host.hostname.as_str())
        .collect();
    hosts.sort_unstable();
    hosts.dedup();
    conditions.insert("agents' hosts".to_owned(), hosts.join(", "));
    let mut clients: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for group in &plan.groups {
        let key = format!("clients {} {}", group.style, group.kind);
        let entry = clients.entry(key).or_insert((0, group.interval_ns));
        entry.0 += u64::from(group.clients);
    }
    // The number of targets differs where other proxies are measured.
    let targets = {
        let mut names: Vec<&str> = plan.groups.iter().map(|g| g.target.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names.len().max(1) as u64
    };
    for (key, (n, interval_ns)) in clients {
        conditions.insert(
            key,
            format!(
                "{} a target, each every {} ms",
                n as f64 / targets as f64,
                interval_ns as f64 / 1e6
            ),
        );
    }
    conditions
}

/// What differs between two runs.
pub fn differences(first: &Conditions, other: &Conditions) -> Vec<Differs> {
    let mut keys: Vec<&String> = first.keys().chain(other.keys()).collect();
    keys.sort();
    keys.dedup();
    let value =
        |side: &Conditions, key: &str| side.get(key).cloned().unwrap_or_else(|| "none".to_owned());
    keys.into_iter()
        .filter(|key| first.get(*key) != other.get(*key))
        .map(|key| Differs {
            what: key.clone(),
            first: value(first, key),
            other: value(other, key),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named() {
        let side = |host: &str| {
            Conditions::from([
                ("host".to_owned(), host.to_owned()),
                ("protocol".to_owned(), "text".to_owned()),
            ])
        };
        assert_eq!(differences(&side("a"), &side("a")), []);
        let found = differences(&side("a"), &side("b"));
        assert_eq!(found.len(), 1);
        assert_eq!(
            (
                found[0].what.as_str(),
                found[0].first.as_str(),
                found[0].other.as_str()
            ),
            ("host", "a", "b")
        );
        assert_eq!(differences(&side("a"), &Conditions::new()).len(), 2);
    }

    #[test]
    fn a_table_s_random_name_is_no_difference() {
        assert_eq!(
            without_random_table("SELECT 1 FROM gapscope_overhead_0a1b2c3d WHERE x"),
            "SELECT 1 FROM gapscope_overhead WHERE x"
        );
        assert_eq!(
            without_random_table("FROM gapscope_overhead"),
            "FROM gapscope_overhead"
        );
    }
}
