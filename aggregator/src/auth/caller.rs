//! Who has been let in, as it goes with each request.

use gapscope_proto::ids::AgentId;
use gapscope_proto::tls::dial::HINT;
use gapscope_proto::tls::{Principal, Trouble};
use tonic::{Code, Status};

/// Who has been let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// This server asks nobody who he is.
    Anyone,
    /// Somebody who has shown it.
    Known(Principal),
}

impl Caller {
    /// Whether it may speak as this agent.
    ///
    /// # Errors
    /// When it is somebody else.
    pub fn may_speak_for(&self, id: &AgentId) -> Result<(), Trouble> {
        match self {
            Self::Anyone => Ok(()),
            Self::Known(known) if *known == Principal::agent(id.clone()) => Ok(()),
            Self::Known(known) => Err(Trouble::hinted(
                format!(
                    "the agent calls itself `{id}`, but its certificate or token is that of {known}"
                ),
                format!(
                    "set agent_id (or --agent-id) to `{}`, or give it a certificate or token of its own",
                    known.name
                ),
            )),
        }
    }

    /// Whether somebody has shown who he is.
    pub const fn is_known(&self) -> bool {
        matches!(self, Self::Known(_))
    }
}

/// A refusal as gRPC sends it: the hint goes beside the text.
pub fn status(code: Code, trouble: &Trouble) -> Status {
    let mut status = Status::new(code, trouble.what.clone());
    if let Some(hint) = trouble.hint.as_ref().and_then(|hint| hint.parse().ok()) {
        status.metadata_mut().insert(HINT, hint);
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_speaks_for_another() {
        let id: AgentId = "east-1".parse().expect("an id");
        let may = |caller: &str| {
            Caller::Known(caller.parse().expect("somebody"))
                .may_speak_for(&id)
                .is_ok()
        };
        assert!(Caller::Anyone.may_speak_for(&id).is_ok());
        assert!(may("agent:east-1"));
        assert!(!may("agent:east-2"));
        assert!(!may("operator:east-1"));
        assert!(!may("viewer"));
    }

    #[test]
    fn a_hint_travels_beside_the_text() {
        let sent = status(Code::PermissionDenied, &Trouble::hinted("no", "ask"));
        let heard = gapscope_proto::tls::dial::of_status(&sent);
        assert_eq!(heard, Trouble::hinted("no", "ask"));
    }
}
