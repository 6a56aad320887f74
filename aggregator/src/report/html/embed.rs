//! Data inside a page: numbers as little-endian bytes in base64, words as JSON
//! in which nothing can end the element that holds it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value as Json;

use super::lanes::Lane;

/// JSON that is safe inside `<script type="application/json">`: `<` and the
/// like are written as escapes, which mean the same to JSON.
pub fn json(value: &Json) -> String {
    let text = value.to_string();
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => safe.push_str("\\u003c"),
            '>' => safe.push_str("\\u003e"),
            '&' => safe.push_str("\\u0026"),
            '\u{2028}' => safe.push_str("\\u2028"),
            '\u{2029}' => safe.push_str("\\u2029"),
            c => safe.push(c),
        }
    }
    safe
}

/// A block of the page's binary data: its name, and the bytes.
type Block = (&'static str, Vec<u8>);

fn u8s(values: impl Iterator<Item = u8>) -> Vec<u8> {
    values.collect()
}

fn u16s(values: impl Iterator<Item = u16>) -> Vec<u8> {
    values.flat_map(u16::to_le_bytes).collect()
}

fn u32s(values: impl Iterator<Item = u32>) -> Vec<u8> {
    values.flat_map(u32::to_le_bytes).collect()
}

fn f64s(values: impl Iterator<Item = f64>) -> Vec<u8> {
    values.flat_map(f64::to_le_bytes).collect()
}

/// Microseconds in 32 bits: up to 71 minutes.
fn micros(ns: i64) -> u32 {
    u32::try_from(ns.max(0) / 1_000).unwrap_or(u32::MAX)
}

/// All lanes' cells and samples, lane after lane.
pub fn blocks(lanes: &[&Lane]) -> String {
    let cells = || lanes.iter().flat_map(|lane| &lane.cells);
    let singles = || lanes.iter().flat_map(|lane| &lane.singles);
    let blocks: [Block; 17] = [
        ("cell-bits", u8s(cells().map(|c| c.bits))),
        ("cell-cause", u8s(cells().map(|c| c.cause))),
        ("cell-backend", u8s(cells().map(|c| c.backend))),
        ("cell-low", u16s(cells().map(|c| c.low))),
        ("cell-high", u16s(cells().map(|c| c.high))),
        ("cell-probed", u16s(cells().map(|c| c.probed))),
        ("cell-bad", u16s(cells().map(|c| c.bad))),
        ("one-client", u16s(singles().map(|s| s.client))),
        ("one-strip", u16s(singles().map(|s| s.strip))),
        // Whole nanoseconds: exact in a float for 104 days.
        ("one-due", f64s(singles().map(|s| s.due_ns as f64))),
        (
            "one-begun",
            u32s(singles().map(|s| micros(s.begun_after_ns))),
        ),
        ("one-took", u32s(singles().map(|s| micros(s.took_ns)))),
        ("one-worth", u8s(singles().map(|s| s.worth))),
        ("one-backend", u8s(singles().map(|s| s.backend))),
        ("one-error", u16s(singles().map(|s| s.error))),
        ("one-connection", u32s(singles().map(|s| s.connection))),
        (
            "one-connection-id",
            f64s(singles().map(|s| s.connection_id as f64)),
        ),
    ];
    let mut out = String::new();
    for (name, bytes) in blocks {
        out.push_str("<script type=\"text/plain\" id=\"data-");
        out.push_str(name);
        out.push_str("\">");
        STANDARD.encode_string(bytes, &mut out);
        out.push_str("</script>\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_cannot_end_its_element_and_means_the_same() {
        let value = serde_json::json!({"a": "</script><script>alert(1)</script>&\u{2028}"});
        let text = json(&value);
        assert!(!text.contains('<') && !text.contains('>'), "{text}");
        assert_eq!(serde_json::from_str::<Json>(&text).ok(), Some(value));
    }
}
