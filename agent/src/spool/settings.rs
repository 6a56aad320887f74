//! How a spool is to behave: its bounds, what goes when it is full, and how
//! often it is synced.

use std::str::FromStr;

use serde::Deserialize;

use super::vfs::Space;

/// Bytes a spool may take unless told otherwise.
pub const DEFAULT_MAX_BYTES: u64 = 1 << 30;
/// Least bound: below it the parts of a spool would not fit.
pub const LEAST_MAX_BYTES: u64 = 1 << 20;
/// Most that is left free on the disk unless told otherwise.
const DEFAULT_MIN_FREE: u64 = 1 << 30;
const DEFAULT_INTERVAL_NS: i64 = 100_000_000;

/// How often what was written is made durable. It matters for a loss of power
/// only: a process that is killed loses nothing that it had written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum SyncPolicy {
    /// At most so many nanoseconds after it was written.
    Interval(i64),
    /// Before anything else is written.
    Always,
    /// When the file system likes.
    Never,
}

impl Default for SyncPolicy {
    fn default() -> Self {
        Self::Interval(DEFAULT_INTERVAL_NS)
    }
}

impl FromStr for SyncPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "interval" => Ok(Self::default()),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => text
                .strip_suffix("ms")
                .and_then(|n| n.parse::<u32>().ok())
                .filter(|ms| (1..=60_000).contains(ms))
                .map(|ms| Self::Interval(i64::from(ms) * 1_000_000))
                .ok_or_else(|| {
                    format!(
                        "`{text}` is no sync policy; known: interval (100 ms), always, never, \
                         or an interval from 1ms to 60000ms"
                    )
                }),
        }
    }
}

/// What goes when the spool is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "String")]
pub enum WhenFull {
    /// The oldest samples, a whole segment at a time.
    #[default]
    Oldest,
    /// The newest samples: what is held stays.
    Newest,
    /// Nothing: probing stands still, and the slots that pass are booked as not
    /// probed by the agent.
    StopProbing,
}

impl FromStr for WhenFull {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "oldest" => Ok(Self::Oldest),
            "newest" => Ok(Self::Newest),
            "stop-probing" => Ok(Self::StopProbing),
            _ => Err(format!(
                "`{text}` is nothing to do with a full spool; known: oldest, newest, stop-probing"
            )),
        }
    }
}

impl TryFrom<String> for SyncPolicy {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl TryFrom<String> for WhenFull {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// What the command line or the file says of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Given {
    /// See [`Settings::max_bytes`].
    pub max_bytes: Option<u64>,
    /// See [`Settings::min_free_bytes`].
    pub min_free_bytes: Option<u64>,
    /// See [`Settings::sync`].
    pub sync: Option<SyncPolicy>,
    /// See [`Settings::when_full`].
    pub when_full: Option<WhenFull>,
}

impl Given {
    /// This, and where it says nothing, `other`.
    pub fn or(self, other: Self) -> Self {
        Self {
            max_bytes: self.max_bytes.or(other.max_bytes),
            min_free_bytes: self.min_free_bytes.or(other.min_free_bytes),
            sync: self.sync.or(other.sync),
            when_full: self.when_full.or(other.when_full),
        }
    }

    /// With the defaults.
    pub fn settings(self) -> Settings {
        let default = Settings::default();
        Settings {
            max_bytes: self
                .max_bytes
                .unwrap_or(default.max_bytes)
                .max(LEAST_MAX_BYTES),
            min_free_bytes: self.min_free_bytes,
            sync: self.sync.unwrap_or_default(),
            when_full: self.when_full.unwrap_or_default(),
        }
    }
}

/// How a spool is to behave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Bytes it may take.
    pub max_bytes: u64,
    /// Bytes of the disk it leaves free. None: a twentieth of the disk, at most
    /// 1 GiB.
    pub min_free_bytes: Option<u64>,
    /// How often it is synced.
    pub sync: SyncPolicy,
    /// What goes when it is full.
    pub when_full: WhenFull,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_bytes: DEFAULT_MAX_BYTES,
            min_free_bytes: None,
            sync: SyncPolicy::default(),
            when_full: WhenFull::default(),
        }
    }
}

impl Settings {
    /// Bytes to be left free on this disk.
    pub fn min_free(&self, space: Space) -> u64 {
        self.min_free_bytes
            .unwrap_or_else(|| (space.total / 20).min(DEFAULT_MIN_FREE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        assert_eq!("interval".parse(), Ok(SyncPolicy::Interval(100_000_000)));
        assert_eq!("20ms".parse(), Ok(SyncPolicy::Interval(20_000_000)));
        assert_eq!("always".parse(), Ok(SyncPolicy::Always));
        assert_eq!("never".parse(), Ok(SyncPolicy::Never));
        for bad in ["0ms", "61000ms", "20", "20s", ""] {
            assert!(bad.parse::<SyncPolicy>().is_err(), "{bad}");
        }
        assert_eq!("stop-probing".parse(), Ok(WhenFull::StopProbing));
        assert!("youngest".parse::<WhenFull>().is_err());
    }

    #[test]
    fn the_file_and_the_flags() {
        let file: Given =
            toml::from_str("max_bytes = 5\nsync = \"20ms\"\nwhen_full = \"newest\"\n")
                .expect("valid");
        let flags = Given {
            when_full: Some(WhenFull::StopProbing),
            ..Given::default()
        };
        assert_eq!(
            flags.or(file).settings(),
            Settings {
                max_bytes: LEAST_MAX_BYTES,
                min_free_bytes: None,
                sync: SyncPolicy::Interval(20_000_000),
                when_full: WhenFull::StopProbing,
            }
        );
        for (bad, says) in [
            ("sync = \"often\"", "known: interval"),
            (
                "when_full = \"explode\"",
                "known: oldest, newest, stop-probing",
            ),
            ("size = 5", "unknown field `size`"),
        ] {
            let error = toml::from_str::<Given>(bad).expect_err(bad);
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn a_small_disk_keeps_a_twentieth_free_and_a_large_one_a_gibibyte() {
        let settings = Settings::default();
        let disk = |total| Space { free: 0, total };
        assert_eq!(settings.min_free(disk(1_000_000)), 50_000);
        assert_eq!(settings.min_free(disk(1 << 40)), 1 << 30);
    }
}
