//! What gates found, as JUnit's XML, which CI systems show. Pure.

use std::fmt::Write as _;

/// One gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// What was asked.
    pub name: String,
    /// Why it failed, if it did.
    pub failure: Option<String>,
}

/// Text that may stand in an attribute or between tags. Characters that XML 1.0
/// has no way to write are replaced.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&apos;"),
            '\n' | '\t' => safe.push(' '),
            c if c.is_control() || matches!(c, '\u{FFFE}' | '\u{FFFF}') => safe.push('?'),
            c => safe.push(c),
        }
    }
    safe
}

/// The file.
pub fn junit(suite: &str, cases: &[Case]) -> String {
    let failed = cases.iter().filter(|c| c.failure.is_some()).count();
    let (suite, all) = (escape(suite), cases.len());
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <testsuites tests=\"{all}\" failures=\"{failed}\">\n\
         <testsuite name=\"{suite}\" tests=\"{all}\" failures=\"{failed}\" errors=\"0\" skipped=\"0\">\n"
    );
    for case in cases {
        let name = escape(&case.name);
        match &case.failure {
            None => writeln!(out, "<testcase classname=\"{suite}\" name=\"{name}\"/>"),
            Some(why) => writeln!(
                out,
                "<testcase classname=\"{suite}\" name=\"{name}\"><failure message=\"{}\"/></testcase>",
                escape(why)
            ),
        }
        .expect("a String takes everything");
    }
    out.push_str("</testsuite>\n</testsuites>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_ci_systems_read_it() {
        let cases = [
            Case {
                name: "gap > 2s".to_owned(),
                failure: Some("a \"b\" & \u{1b}[0m: 3 s".to_owned()),
            },
            Case {
                name: "errors > 0".to_owned(),
                failure: None,
            },
        ];
        insta::assert_snapshot!(junit("gapscope <run>", &cases), @r#"
        <?xml version="1.0" encoding="UTF-8"?>
        <testsuites tests="2" failures="1">
        <testsuite name="gapscope &lt;run&gt;" tests="2" failures="1" errors="0" skipped="0">
        <testcase classname="gapscope &lt;run&gt;" name="gap &gt; 2s"><failure message="a &quot;b&quot; &amp; ?[0m: 3 s"/></testcase>
        <testcase classname="gapscope &lt;run&gt;" name="errors &gt; 0"/>
        </testsuite>
        </testsuites>
        "#);
    }
}
