//! Network namespaces for backends, so that their packets can be dropped without
//! touching anything that is not the lab's.
//!
//! Each backend lives in a namespace of its own, joined to the host by a pair of
//! virtual interfaces with a small private network. Rules that drop or reject
//! packets stand inside the backend's namespace and vanish with it: whatever
//! becomes of the lab, its janitor (a process of its own) or `down --all` removes
//! the namespace, and nothing of the host's own rules was ever changed.
//!
//! Needs root, `ip` and `iptables`.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use gapscope_proto::clock::Clock;
use gapscope_proto::fault::Span;

use super::find::{Named, find};
use crate::error::{Problem, Result};
use crate::leftovers::Owner;
use crate::scenario::Action;

/// Where named namespaces are.
pub const NAMESPACES: &str = "/run/netns";
/// The backend's end of the pair.
const INSIDE: &str = "eth0";
const NETWORKS_TRIED: u32 = 50;

/// What makes and changes namespaces.
#[derive(Debug, Clone)]
pub struct Tools {
    ip: PathBuf,
    iptables: PathBuf,
}

impl Tools {
    /// Finds them, or says what is missing.
    pub fn find(named: &Named) -> std::result::Result<Self, String> {
        let applies = "not applicable: cutting off a real program's packets";
        if !rustix::process::geteuid().is_root() {
            return Err(format!("{applies} needs root (a network namespace)"));
        }
        let one = |name: &'static str, package: &str| {
            find(named, &[name], package)
                .map_err(|_| format!("{applies} needs `{name}` (apt install {package})"))
        };
        Ok(Self {
            ip: one("ip", "iproute2")?,
            iptables: one("iptables", "iptables")?,
        })
    }

    fn ip(&self, args: &[&str]) -> Result<()> {
        run(&self.ip, args)
    }
}

fn run(program: &Path, args: &[&str]) -> Result<()> {
    let failed = |why: String| {
        Problem::new(format!(
            "`{} {}` failed: {why}",
            program.display(),
            args.join(" ")
        ))
    };
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(failed(
            String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        ))
    }
}

/// A backend's namespace. Dropping it removes it.
#[derive(Debug)]
pub struct Namespace {
    tools: Tools,
    name: String,
    address: Ipv4Addr,
}

/// What a lab's namespaces are called.
fn prefix(owner: &Owner) -> Option<String> {
    let folder = owner.folder.file_name()?.to_str()?;
    Some(format!("{folder}-net-"))
}

impl Namespace {
    /// Makes the namespace of backend number `number`.
    pub fn make(tools: &Tools, owner: &Owner, number: u32) -> Result<Self> {
        let prefix = prefix(owner).ok_or_else(|| Problem::new("the lab's folder has no name"))?;
        let name = format!("{prefix}{number}");
        let outside = format!("gs{}.{number}", owner.name());
        if outside.len() > 15 {
            return Err(Problem::new(format!(
                "`{outside}` is too long for the name of a network interface"
            )));
        }
        let (there, here) = free_network()?;
        tools.ip(&["netns", "add", &name])?;
        // From here on it is removed on an error.
        let made = Self {
            tools: tools.clone(),
            name: name.clone(),
            address: there,
        };
        tools.ip(&[
            "link", "add", &outside, "type", "veth", "peer", "name", INSIDE, "netns", &name,
        ])?;
        tools.ip(&["addr", "add", &format!("{here}/30"), "dev", &outside])?;
        tools.ip(&["link", "set", &outside, "up"])?;
        tools.ip(&[
            "-n",
            &name,
            "addr",
            "add",
            &format!("{there}/30"),
            "dev",
            INSIDE,
        ])?;
        tools.ip(&["-n", &name, "link", "set", INSIDE, "up"])?;
        tools.ip(&["-n", &name, "link", "set", "lo", "up"])?;
        Ok(made)
    }

    /// The backend's address.
    pub const fn address(&self) -> IpAddr {
        IpAddr::V4(self.address)
    }

    /// The file that stands for it.
    pub fn file(&self) -> PathBuf {
        Path::new(NAMESPACES).join(&self.name)
    }

    fn rules(&self, args: &[&str]) -> Result<()> {
        let iptables = self.tools.iptables.to_string_lossy().into_owned();
        let mut all = vec!["netns", "exec", self.name.as_str(), iptables.as_str(), "-w"];
        all.extend_from_slice(args);
        self.tools.ip(&all)
    }

    /// Cuts the backend off; tells when, and what was done.
    pub fn cut(&self, action: Action, clock: &dyn Clock) -> Result<(Span, String)> {
        let incoming = ["-A", "INPUT", "-i", INSIDE, "-j", "DROP"];
        let outgoing = ["-A", "OUTPUT", "-o", INSIDE, "-j", "DROP"];
        let reset = [
            "-A",
            "INPUT",
            "-i",
            INSIDE,
            "-p",
            "tcp",
            "-j",
            "REJECT",
            "--reject-with",
            "tcp-reset",
        ];
        let (rules, detail): (&[&[&str]], &str) = match action {
            Action::BlackHole => (
                &[&incoming, &outgoing],
                "its packets are dropped, both ways",
            ),
            Action::Mute => (&[&outgoing], "its answers are dropped; it still hears"),
            _ => (&[&reset], "its packets are answered with resets"),
        };
        let earliest_ns = clock.raw_ns();
        for rule in rules {
            self.rules(rule)?;
        }
        let when = Span {
            earliest_ns,
            latest_ns: clock.raw_ns(),
        };
        Ok((when, format!("{detail} (in namespace {})", self.name)))
    }

    /// Undoes [`Self::cut`].
    pub fn heal(&self, clock: &dyn Clock) -> Result<Span> {
        let earliest_ns = clock.raw_ns();
        self.rules(&["-F"])?;
        Ok(Span {
            earliest_ns,
            latest_ns: clock.raw_ns(),
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // An error means that it is gone.
        let _ = self.tools.ip(&["netns", "del", &self.name]);
    }
}

/// Two addresses of a private network of four that nothing on this host uses.
fn free_network() -> Result<(Ipv4Addr, Ipv4Addr)> {
    let [a, b, c] = free_prefix()?;
    Ok((Ipv4Addr::new(a, b, c, 2), Ipv4Addr::new(a, b, c, 1)))
}

/// The first three parts of a private network that nothing on this host uses.
///
/// # Errors
/// When none was found.
pub fn free_prefix() -> Result<[u8; 3]> {
    // Addresses and routes of this host, in the kernel's own form.
    let known = std::fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    for _ in 0..NETWORKS_TRIED {
        let (b, c): (u8, u8) = (rand::random_range(200..250), rand::random());
        if !known.contains(&format!(" 10.{b}.{c}.")) {
            return Ok([10, b, c]);
        }
    }
    Err(Problem::new(
        "no private network between 10.200.0.0 and 10.249.255.0 is free",
    ))
}

/// Removes the namespaces of a lab that is gone. Returns how many.
pub fn remove_all(owner: &Owner) -> usize {
    let Some(prefix) = prefix(owner) else {
        return 0;
    };
    let names: Vec<String> = std::fs::read_dir(NAMESPACES)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(&prefix))
        .collect();
    let Ok(ip) = find(&Named::new(), &["ip"], "") else {
        return 0;
    };
    names
        .iter()
        .filter(|name| run(&ip, &["netns", "del", name]).is_ok())
        .count()
}
