//! After a run: what is down or frozen is brought back, so that the write ledger
//! can be read from it. Nothing of that is a fault: probing is over.

use std::collections::BTreeMap;

use crate::runtime::Backend;
use crate::scenario::Action;
use crate::timeline::Due;

/// The last step that was done to each subject before `elapsed_ns`, where it was
/// not undone, and what undoes it.
fn to_undo(due: &[Due], elapsed_ns: u64) -> BTreeMap<&str, Action> {
    let mut last: BTreeMap<&str, Action> = BTreeMap::new();
    for step in due.iter().filter(|step| step.at_ns <= elapsed_ns) {
        last.insert(&step.subject, step.action);
    }
    last.into_iter()
        .filter_map(|(subject, action)| Some((subject, action.undone_by()?)))
        // What is only drained can be read.
        .filter(|(_, undo)| matches!(undo, Action::Start | Action::Resume))
        .collect()
}

/// Brings every backend back. What cannot be brought back is said; the ledger is
/// then not read from it.
pub async fn all(
    backends: &mut [Box<dyn Backend>],
    due: &[Due],
    elapsed_ns: u64,
    mut say: impl FnMut(&str),
) {
    for (subject, action) in to_undo(due, elapsed_ns) {
        let Some(backend) = backends.iter_mut().find(|b| b.name() == subject) else {
            continue;
        };
        let step = Due {
            at_ns: elapsed_ns,
            action,
            subject: subject.to_owned(),
            grace_ns: None,
            lasts_ns: None,
            to: None,
            is_restart: false,
        };
        match backend.apply(&step).await {
            Ok(_) => say(&format!(
                "after the run: {action} `{subject}`, so that the ledger is read from it too"
            )),
            Err(problem) => say(&format!(
                "after the run: `{subject}` is not back, the ledger is not read from it: {}",
                problem.what
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_still_down_is_brought_back() {
        let step = |at_ns, action, subject: &str| Due {
            at_ns,
            action,
            subject: subject.to_owned(),
            grace_ns: None,
            lasts_ns: None,
            to: None,
            is_restart: false,
        };
        let due = [
            step(1, Action::Stop, "a"),
            step(1, Action::Hang, "b"),
            step(2, Action::Start, "a"),
            step(2, Action::Kill, "c"),
            step(9, Action::Kill, "a"),
        ];
        let found: Vec<_> = to_undo(&due, 5).into_iter().collect();
        assert_eq!(found, [("b", Action::Resume), ("c", Action::Start)]);
    }
}
