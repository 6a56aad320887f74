//! Passwords and tokens: held so that nothing prints them.
//!
//! The text is wiped from memory when the last holder goes. What this cannot do:
//! wipe copies that a driver or the kernel has made.

use std::fmt;

use zeroize::Zeroizing;

/// A password or a token. Never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Wraps it.
    pub fn new(text: impl Into<String>) -> Self {
        Self(Zeroizing::new(text.into()))
    }

    /// The text of a file that holds one: without the line's end.
    pub fn first_line(file: String) -> Self {
        let file = Zeroizing::new(file);
        let text = file.strip_suffix('\n').unwrap_or(&file);
        Self::new(text.strip_suffix('\r').unwrap_or(text))
    }

    /// The text itself, for whoever must send it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_not_printed_and_a_line_s_end_is_no_part_of_it() {
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "***");
        for text in ["hunter2", "hunter2\n", "hunter2\r\n"] {
            assert_eq!(Secret::first_line(text.to_owned()).expose(), "hunter2");
        }
        assert_eq!(Secret::first_line(" a \n\n".to_owned()).expose(), " a \n");
    }
}
