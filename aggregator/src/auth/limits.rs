//! How often an address may come. Pure: time is an argument.
//!
//! A generic cell rate algorithm (ITU-T I.371): one number an address, the time at
//! which its budget is whole again. An IPv6 client can choose the lower half of its
//! address, so the upper half counts. Addresses behind one translator share a
//! budget; budgets are therefore wide: they keep a server alive, they do not guard
//! a secret (a token has 256 bits).

use core::net::{IpAddr, Ipv6Addr};
use std::collections::HashMap;

/// Addresses remembered; beyond, those with the fullest budget are forgotten.
const MOST: usize = 10_000;

/// A budget an address.
#[derive(Debug)]
pub struct Meter {
    every_ns: i64,
    burst: i64,
    whole_at: HashMap<IpAddr, i64>,
}

impl Meter {
    /// One each `every_ns` in the long run, `burst` at once.
    pub fn new(every_ns: i64, burst: i64) -> Self {
        Self {
            every_ns,
            burst,
            whole_at: HashMap::new(),
        }
    }

    /// Takes one from an address's budget; false if it is used up.
    pub fn take(&mut self, from: IpAddr, now_ns: i64) -> bool {
        if self.wait_ns(from, now_ns) > 0 {
            return false;
        }
        if self.whole_at.len() >= MOST {
            self.forget(now_ns);
        }
        let whole_at = self.whole_at.entry(group(from)).or_insert(now_ns);
        *whole_at = (*whole_at).max(now_ns) + self.every_ns;
        true
    }

    /// How long until an address may come again; 0: now.
    pub fn wait_ns(&self, from: IpAddr, now_ns: i64) -> i64 {
        let whole_at = self.whole_at.get(&group(from)).copied().unwrap_or(now_ns);
        (whole_at - now_ns - (self.burst - 1) * self.every_ns).max(0)
    }

    fn forget(&mut self, now_ns: i64) {
        self.whole_at.retain(|_, whole_at| *whole_at > now_ns);
        if self.whole_at.len() >= MOST {
            let mut times: Vec<i64> = self.whole_at.values().copied().collect();
            let (_, middle, _) = times.select_nth_unstable(MOST / 2);
            let middle = *middle;
            self.whole_at.retain(|_, whole_at| *whole_at > middle);
        }
    }
}

fn group(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(v6) => {
            let upper = u128::from(v6) >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from(upper))
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_burst_then_one_at_a_time() {
        let mut meter = Meter::new(S, 3);
        let a = ip("10.0.0.1");
        for _ in 0..3 {
            assert!(meter.take(a, 0));
        }
        assert!(!meter.take(a, 0));
        assert_eq!(meter.wait_ns(a, 0), S);
        assert!(!meter.take(a, S - 1));
        assert!(meter.take(a, S));
        assert!(!meter.take(a, S));
        assert!(meter.take(ip("10.0.0.2"), S), "another's budget is its own");
        for _ in 0..3 {
            assert!(meter.take(a, 100 * S), "whole again, and no more than that");
        }
        assert!(!meter.take(a, 100 * S));
    }

    #[test]
    fn the_lower_half_of_an_ipv6_address_does_not_help() {
        let mut meter = Meter::new(S, 1);
        assert!(meter.take(ip("2001:db8::1"), 0));
        assert!(!meter.take(ip("2001:db8::2"), 0));
        assert!(meter.take(ip("2001:db8:0:1::1"), 0));
        assert!(meter.take(ip("10.0.0.1"), 0));
        assert!(!meter.take(ip("::ffff:10.0.0.1"), 0));
    }

    #[test]
    fn memory_is_bounded_and_the_worst_are_remembered() {
        let mut meter = Meter::new(S, 1_000);
        let worst = ip("192.0.2.1");
        for _ in 0..1_000 {
            meter.take(worst, 0);
        }
        for n in 0..50_000_u32 {
            meter.take(IpAddr::from(n.to_be_bytes()), 0);
            assert!(meter.whole_at.len() <= MOST);
        }
        assert!(!meter.take(worst, 0));
    }
}
