//! Tries out the way to the aggregator, for `check`: one exchange of time, which
//! only an agent that is let in gets answered.

use std::time::Duration;

use gapscope_proto::clock::Clock;
use gapscope_proto::ids::AgentId;
use gapscope_proto::tls::{Dialer, Principal, Trouble};
use gapscope_proto::wire::{Ping, clock_client::ClockClient};

use super::link::{CONNECT_WITHIN, settings};

const PONG_LIMIT: Duration = Duration::from_secs(5);

/// Says how the aggregator lets this agent in.
///
/// # Errors
/// When it does not, or the certificate is that of somebody else.
pub async fn try_out(
    dialer: &Dialer,
    agent_id: &AgentId,
    clock: &dyn Clock,
) -> Result<Vec<String>, Trouble> {
    let own = dialer.own();
    if let Some(Ok(Some(known))) = own.as_ref().map(|own| own.principal())
        && *known != Principal::agent(agent_id.clone())
    {
        return Err(Trouble::hinted(
            format!("this agent's id is `{agent_id}`, but its certificate is that of {known}"),
            "set agent_id (or --agent-id) to the id in the certificate, or make one for this id",
        ));
    }
    let line = dialer.dial(CONNECT_WITHIN, settings).await?;
    let begun_ns = clock.raw_ns();
    let pings = tokio_stream::once(Ping {
        number: 1,
        a1_ns: begun_ns,
    });
    let answered = async {
        let response = ClockClient::new(line.service()).exchange(pings).await?;
        response.into_inner().message().await
    };
    let pong = tokio::time::timeout(PONG_LIMIT, answered)
        .await
        .map_err(|_| Trouble::new(format!("{} does not answer", dialer.url())))?
        .map_err(|status| line.explain(&status))?;
    if pong.is_none() {
        return Err(Trouble::new(format!(
            "{} closes without an answer",
            dialer.url()
        )));
    }
    let took_ms = (clock.raw_ns() - begun_ns) as f64 / 1e6;
    let mut lines = vec![format!("lets this agent in, answered in {took_ms:.1} ms")];
    if let Some(own) = own {
        lines.push(format!("certificate  {}", own.validity()));
    }
    Ok(lines)
}
