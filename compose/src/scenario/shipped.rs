//! The scenarios inside the program.

/// Name and text of each shipped scenario.
pub const SHIPPED: &[(&str, &str)] = &[
    ("baseline", include_str!("../../scenarios/baseline.toml")),
    (
        "switchover",
        include_str!("../../scenarios/switchover.toml"),
    ),
];

/// The text of a shipped scenario.
pub fn shipped(name: &str) -> Option<&'static str> {
    SHIPPED
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, text)| *text)
}
