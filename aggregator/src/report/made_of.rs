//! What a run was made of, in sentences: its labels, as the lab gives them. Others keep
//! their own words.

use std::collections::BTreeMap;

/// Steps that are listed; beyond, how many more.
const MOST_STEPS: usize = 6;

/// "backend-1 and backend-2" of one program: each program once, in order.
fn programs(labels: &BTreeMap<String, String>, prefix: &str) -> Vec<String> {
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    for (key, program) in labels {
        let Some(name) = key.strip_prefix(prefix) else {
            continue;
        };
        match found.iter_mut().find(|(known, _)| known == program) {
            Some((_, names)) => names.push(name),
            None => found.push((program, vec![name])),
        }
    }
    found
        .into_iter()
        .map(|(program, names)| match names.as_slice() {
            [name] if *name == program => program.to_owned(),
            names => format!("{} ({program})", names.join(", ")),
        })
        .collect()
}

/// A few lines.
pub(super) fn lines(labels: &BTreeMap<String, String>) -> Vec<String> {
    let of = |key: &str| labels.get(key).map(String::as_str);
    let mut lines = Vec::new();
    let mut lab = Vec::new();
    if let Some(runtime) = of("runtime") {
        lab.push(format!("runtime {runtime}"));
    }
    if let Some(version) = of("lab_version") {
        lab.push(format!("lab {version}"));
    }
    if let Some(seed) = of("seed") {
        lab.push(format!("seed {seed}"));
    }
    if let Some(times) = of("repeat") {
        lab.push(format!("{times} repetitions"));
    }
    if let Some(changes) = of("changes") {
        lab.push(format!("changed by {changes}"));
    }
    if !lab.is_empty() {
        lines.push(lab.join(", "));
    }
    for (what, prefix) in [("backends", "backend."), ("targets", "target.")] {
        let programs = programs(labels, prefix);
        if !programs.is_empty() {
            lines.push(format!("{what}: {}", programs.join("; ")));
        }
    }
    let steps: Vec<&str> = labels
        .iter()
        .filter(|(key, _)| key.starts_with("step."))
        .map(|(_, step)| step.as_str())
        .collect();
    if !steps.is_empty() {
        let more = match steps.len().saturating_sub(MOST_STEPS) {
            0 => String::new(),
            more => format!("; {more} more"),
        };
        let first = steps[..steps.len().min(MOST_STEPS)].join("; ");
        lines.push(format!("planned: {first}{more}"));
    }
    let is_said = |key: &str| {
        ["runtime", "lab_version", "seed", "repeat", "changes"].contains(&key)
            || ["backend.", "target.", "step."]
                .iter()
                .any(|prefix| key.starts_with(prefix))
    };
    let others: Vec<String> = labels
        .iter()
        .filter(|(key, _)| !is_said(key))
        .map(|(key, value)| format!("{}: {value}", key.replace('_', " ")))
        .collect();
    if !others.is_empty() {
        lines.push(others.join(", "));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_sentences_and_none_is_left_out() {
        let labels = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            let owned = pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
            owned.collect()
        };
        let of_lab = labels(&[
            ("runtime", "process"),
            ("seed", "7"),
            ("lab_version", "0.1.0"),
            ("changes", "--faster 5"),
            ("backend.backend-1", "mariadbd 10.11.6"),
            ("backend.backend-2", "mariadbd 10.11.6"),
            ("target.haproxy", "HAProxy 2.6.12"),
            ("target.l4-passthrough", "l4-passthrough"),
            ("step.01", "stop backend-1 due 11.258 s after the start"),
            ("written_by", "hand"),
        ]);
        assert_eq!(
            lines(&of_lab),
            [
                "runtime process, lab 0.1.0, seed 7, changed by --faster 5",
                "backends: backend-1, backend-2 (mariadbd 10.11.6)",
                "targets: haproxy (HAProxy 2.6.12); l4-passthrough",
                "planned: stop backend-1 due 11.258 s after the start",
                "written by: hand",
            ]
        );
        assert_eq!(lines(&labels(&[])), [""; 0]);
        let many: Vec<(String, String)> = (0..9)
            .map(|k| (format!("step.{k:02}"), format!("s{k}")))
            .collect();
        let many = many.into_iter().collect();
        assert_eq!(lines(&many), ["planned: s0; s1; s2; s3; s4; s5; 3 more"]);
    }
}
