//! The documented table is the program's.

#[test]
fn the_table_is_what_the_program_does() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/outcomes.md");
    let made = gapscope_agent::outcome::table::document();
    if std::env::var_os("GAPSCOPE_UPDATE_DOCS").is_some() {
        std::fs::write(path, &made).expect("written");
    }
    let stands = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        stands == made,
        "agent/docs/outcomes.md is not current: GAPSCOPE_UPDATE_DOCS=1 cargo test --workspace --test outcomes"
    );
}
