//! Whether a request is meant for this server. Pure.
//!
//! A page of somebody else can make a browser ask any address, under a name of its
//! own that it lets point here ("DNS rebinding"); the browser then takes our answers
//! for that page's own. Such a name is in `Host`, so only names that cannot be
//! somebody else's are answered: addresses, `localhost`, those in the own
//! certificate, and those the operator gave.

use core::net::IpAddr;

/// The name in a `Host` header or an origin, without its port.
fn name_of(host: &str) -> Option<&str> {
    if let Some(rest) = host.strip_prefix('[') {
        let (name, port) = rest.split_once(']')?;
        return is_port(port).then_some(name);
    }
    let (name, port) = host.split_at(host.find(':').unwrap_or(host.len()));
    is_port(port).then_some(name)
}

fn is_port(text: &str) -> bool {
    match text.strip_prefix(':') {
        None => text.is_empty(),
        Some(digits) => digits.parse::<u16>().is_ok(),
    }
}

/// Whether `host`, as a browser sends it, is a name of ours.
pub fn is_ours(host: &str, names: &[String]) -> bool {
    let Some(name) = name_of(host) else {
        return false;
    };
    name.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || names.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// Whether a form that comes from `origin` was on a page of the server asked as
/// `host`. Browsers send `Origin` with every form; others need not.
pub fn is_own_form(origin: Option<&str>, host: &str) -> bool {
    origin.is_none_or(|origin| {
        let rest = origin
            .strip_prefix("http://")
            .or_else(|| origin.strip_prefix("https://"));
        rest.is_some_and(|from| from.eq_ignore_ascii_case(host))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(host: &str, expect: bool) {
        let names = ["gaps.example.org".to_owned()];
        assert_eq!(is_ours(host, &names), expect, "{host}");
    }

    #[test]
    fn names_that_cannot_be_somebody_elses() {
        for host in [
            "127.0.0.1:8080",
            "127.0.0.1",
            "[::1]:8080",
            "[::1]",
            "localhost:8080",
            "LOCALHOST",
            "10.0.0.5:1",
            "gaps.example.org",
            "GAPS.example.org:8443",
        ] {
            check(host, true);
        }
        for host in [
            "",
            "evil.example",
            "evil.example:8080",
            "127.0.0.1.evil.example",
            "localhost.evil.example:8080",
            "notlocalhost",
            "gaps.example.org.evil.example",
            "127.0.0.1:8080:evil",
            "127.0.0.1:evil",
            "[::1].evil.example",
            "[::1",
            "user@localhost",
            "localhost/evil",
        ] {
            check(host, false);
        }
    }

    #[test]
    fn forms_of_others() {
        assert!(is_own_form(None, "localhost:1"));
        assert!(is_own_form(Some("http://localhost:1"), "localhost:1"));
        assert!(!is_own_form(Some("http://localhost:2"), "localhost:1"));
        assert!(!is_own_form(Some("http://evil.example"), "localhost:1"));
        assert!(!is_own_form(Some("null"), "localhost:1"));
    }
}
