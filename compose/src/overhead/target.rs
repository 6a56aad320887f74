//! Targets of one's own: `NAME=USER@HOST:PORT/DB`. Pure.

use gapscope_proto::ids::TargetName;

/// A target as it was given. The password comes from the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// Its name.
    pub name: String,
    /// Who logs in.
    pub user: String,
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Default database, if one was given.
    pub database: Option<String>,
}

/// Reads `NAME=USER@HOST:PORT/DB`; `:PORT` (3306) and `/DB` may be left out.
///
/// # Errors
/// Says what is wrong.
pub fn parse(text: &str) -> Result<Given, String> {
    let form = "write NAME=USER@HOST:PORT/DB, such as proxy=app@10.0.0.5:6033/test";
    let (name, rest) = text
        .split_once('=')
        .ok_or_else(|| format!("`{text}` has no name; {form}"))?;
    let name: TargetName = name
        .parse()
        .map_err(|error| format!("`{name}` is no name of a target: {error}"))?;
    if name.as_str() == "floor" {
        return Err(
            "`floor` is the name of the instrument's own server; choose another".to_owned(),
        );
    }
    let (user, rest) = rest
        .rsplit_once('@')
        .filter(|(user, _)| !user.is_empty())
        .ok_or_else(|| format!("`{text}` has no user; {form}"))?;
    if user.contains(':') {
        return Err(format!(
            "a password does not belong on the command line, where everybody can read it: set \
             {} instead",
            password_variable(name.as_str())
        ));
    }
    let (place, database) = match rest.split_once('/') {
        Some((place, database)) if !database.is_empty() => (place, Some(database.to_owned())),
        Some((place, _)) => (place, None),
        None => (rest, None),
    };
    let (host, port) = match place.rsplit_once(':') {
        // An IPv6 address in brackets has colons of its own.
        Some((host, port)) if !port.ends_with(']') => {
            let port = port
                .parse()
                .ok()
                .filter(|port| *port > 0)
                .ok_or_else(|| format!("`{port}` is no port; {form}"))?;
            (host, port)
        }
        _ => (place, 3306),
    };
    let host = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    if host.is_empty() {
        return Err(format!("`{text}` has no host; {form}"));
    }
    Ok(Given {
        name: name.to_string(),
        user: user.to_owned(),
        host: host.to_owned(),
        port,
        database,
    })
}

/// The environment variable that holds a target's password; without it
/// `GAPSCOPE_PASSWORD` is looked at.
pub fn password_variable(name: &str) -> String {
    let name: String = name
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_uppercase()
            } else {
                '_'
            }
        })
        .collect();
    format!("GAPSCOPE_PASSWORD_{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: (&str, &str, &str, u16, Option<&str>)) {
        let found = parse(text).expect("it is right");
        assert_eq!(
            (
                found.name.as_str(),
                found.user.as_str(),
                found.host.as_str(),
                found.port,
                found.database.as_deref()
            ),
            expect
        );
    }

    #[test]
    fn targets_are_read() {
        check(
            "p=app@10.0.0.5:6033/test",
            ("p", "app", "10.0.0.5", 6033, Some("test")),
        );
        check("p=app@db", ("p", "app", "db", 3306, None));
        check("p=a@b@db:1/", ("p", "a@b", "db", 1, None));
        check("p=app@[::1]:3307/x", ("p", "app", "::1", 3307, Some("x")));
        check("p=app@[::1]", ("p", "app", "::1", 3306, None));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, expect) in [
            ("db", "has no name"),
            ("p=db", "has no user"),
            ("p=@db", "has no user"),
            ("p=a:secret@db", "GAPSCOPE_PASSWORD_P"),
            ("p=a@db:0", "no port"),
            ("p=a@:1", "no host"),
            ("floor=a@db", "choose another"),
            ("=a@db", "no name"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(expect), "{text}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
        assert_eq!(
            password_variable("haproxy-2.9"),
            "GAPSCOPE_PASSWORD_HAPROXY_2_9"
        );
    }
}
