//! Text to tokens: quotes, comments, numbers, `@` names.

use super::Misunderstood;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    /// Unquoted word, in lower case.
    Word(String),
    /// Quoted with backticks.
    Name(Vec<u8>),
    Text(Vec<u8>),
    Number(String),
    UserVariable(String),
    /// Lower case, with scope if given.
    SystemVariable(String),
    Punct(u8),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) start: usize,
    pub(super) end: usize,
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || byte >= 0x80
}

pub(super) fn lower(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).to_ascii_lowercase()
}

fn word_end(text: &[u8], from: usize, allowed: impl Fn(u8) -> bool) -> usize {
    text[from..]
        .iter()
        .position(|byte| !allowed(*byte))
        .map_or(text.len(), |length| from + length)
}

/// A quoted text starting at `from`; returns it unquoted and where it ends.
fn quoted(text: &[u8], from: usize, escapes: bool) -> Result<(Vec<u8>, usize), Misunderstood> {
    let quote = text[from];
    let mut out = Vec::new();
    let mut at = from + 1;
    loop {
        let byte = *text.get(at).ok_or(Misunderstood(from))?;
        let next = text.get(at + 1).copied();
        match byte {
            b'\\' if escapes => {
                out.push(match next.ok_or(Misunderstood(from))? {
                    b'n' => b'\n',
                    b't' => b'\t',
                    b'r' => b'\r',
                    b'0' => 0,
                    b'b' => 8,
                    b'Z' => 26,
                    other => other,
                });
                at += 2;
            }
            byte if byte == quote && next == Some(quote) => {
                out.push(quote);
                at += 2;
            }
            byte if byte == quote => return Ok((out, at + 1)),
            other => {
                out.push(other);
                at += 1;
            }
        }
    }
}

pub(super) fn tokens(text: &[u8]) -> Result<Vec<Token>, Misunderstood> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let rest = &text[at..];
        if byte.is_ascii_whitespace() {
            at += 1;
            continue;
        }
        let dashes = rest.starts_with(b"--") && rest.get(2).is_none_or(u8::is_ascii_whitespace);
        if byte == b'#' || dashes {
            at = word_end(text, at, |byte| byte != b'\n');
            continue;
        }
        if rest.starts_with(b"/*") {
            let length = rest[2..]
                .windows(2)
                .position(|pair| pair == b"*/")
                .ok_or(Misunderstood(at))?;
            at += length + 4;
            continue;
        }
        let (kind, end) = match byte {
            b'\'' | b'"' => {
                let (value, end) = quoted(text, at, true)?;
                (Kind::Text(value), end)
            }
            b'`' => {
                let (value, end) = quoted(text, at, false)?;
                (Kind::Name(value), end)
            }
            b'@' if rest.get(1) == Some(&b'@') => {
                let end = word_end(text, at + 2, |byte| is_word(byte) || byte == b'.');
                (Kind::SystemVariable(lower(&text[at + 2..end])), end)
            }
            b'@' if matches!(rest.get(1), Some(b'`' | b'\'' | b'"')) => {
                let (value, end) = quoted(text, at + 1, false)?;
                (Kind::UserVariable(lower(&value)), end)
            }
            b'@' => {
                let end = word_end(text, at + 1, |byte| is_word(byte) || byte == b'.');
                (Kind::UserVariable(lower(&text[at + 1..end])), end)
            }
            b'0'..=b'9' => {
                let end = word_end(text, at, |byte| byte.is_ascii_digit() || byte == b'.');
                (Kind::Number(lower(&text[at..end])), end)
            }
            b'.' if rest.get(1).is_some_and(u8::is_ascii_digit) => {
                let end = word_end(text, at + 1, |byte| byte.is_ascii_digit());
                (Kind::Number(lower(&text[at..end])), end)
            }
            byte if is_word(byte) => {
                let end = word_end(text, at, is_word);
                (Kind::Word(lower(&text[at..end])), end)
            }
            byte => (Kind::Punct(byte), at + 1),
        };
        tokens.push(Token {
            kind,
            start: at,
            end,
        });
        at = end;
    }
    Ok(tokens)
}
