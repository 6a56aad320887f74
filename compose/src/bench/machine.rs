//! What the figures were measured on.

use gapscope_proto::host::HostFacts;
use serde::Serialize;

/// A machine, and how busy it is.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// How many of them.
    pub processors: u32,
    /// Memory.
    pub memory_bytes: u64,
    /// The kernel's name and version.
    pub kernel: String,
    /// Whether it is a virtual machine, as far as the processor says.
    pub is_virtual: bool,
    /// Processes that ran or wanted to, averaged over a minute, before the benchmark.
    pub load_average: f64,
}

fn cpu_info(key: &str) -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.trim() == key)
        .map(|(_, value)| value.trim().to_owned())
}

/// The load average of the last minute; 0 where it cannot be read.
pub fn load_average() -> f64 {
    std::fs::read_to_string("/proc/loadavg")
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse().ok())
        .unwrap_or(0.0)
}

impl Machine {
    /// Looks at this one.
    pub fn look() -> Self {
        let facts = HostFacts::read();
        let flags = cpu_info("flags").unwrap_or_default();
        Self {
            processor: cpu_info("model name").unwrap_or_else(|| "unknown".to_owned()),
            processors: facts.cpus,
            memory_bytes: facts.memory_bytes,
            kernel: facts.kernel,
            is_virtual: flags.split_whitespace().any(|flag| flag == "hypervisor"),
            load_average: load_average(),
        }
    }

    /// In one sentence.
    pub fn line(&self) -> String {
        format!(
            "{} x {}{}, {:.0} GiB, Linux {}, load average {:.2} before",
            self.processors,
            self.processor,
            if self.is_virtual { " (virtual)" } else { "" },
            self.memory_bytes as f64 / f64::from(1 << 30),
            self.kernel,
            self.load_average
        )
    }
}
