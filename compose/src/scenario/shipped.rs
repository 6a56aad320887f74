//! The scenarios inside the program.

/// Name and text of each shipped scenario.
pub const SHIPPED: &[(&str, &str)] = &[
    ("baseline", include_str!("../../scenarios/baseline.toml")),
    (
        "switchover",
        include_str!("../../scenarios/switchover.toml"),
    ),
    ("killed", include_str!("../../scenarios/killed.toml")),
    ("hung", include_str!("../../scenarios/hung.toml")),
    (
        "hung-quiet",
        include_str!("../../scenarios/hung-quiet.toml"),
    ),
    ("cut-off", include_str!("../../scenarios/cut-off.toml")),
    ("drained", include_str!("../../scenarios/drained.toml")),
    ("failback", include_str!("../../scenarios/failback.toml")),
    (
        "rolling-restart",
        include_str!("../../scenarios/rolling-restart.toml"),
    ),
    ("flapping", include_str!("../../scenarios/flapping.toml")),
    (
        "proxy-restart",
        include_str!("../../scenarios/proxy-restart.toml"),
    ),
    (
        "dns-change",
        include_str!("../../scenarios/dns-change.toml"),
    ),
    ("storm", include_str!("../../scenarios/storm.toml")),
    (
        "long-query",
        include_str!("../../scenarios/long-query.toml"),
    ),
    ("slow", include_str!("../../scenarios/slow.toml")),
    ("half-cut", include_str!("../../scenarios/half-cut.toml")),
];

/// The text of a shipped scenario.
pub fn shipped(name: &str) -> Option<&'static str> {
    SHIPPED
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, text)| *text)
}
