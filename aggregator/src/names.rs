//! Words that are told apart by numbers.

use std::collections::HashMap;

/// Words seen so far, by number.
#[derive(Debug, Default, Clone)]
pub struct Names {
    words: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Names {
    /// The word's number, new if need be.
    pub fn number(&mut self, word: &str) -> u32 {
        if let Some(number) = self.numbers.get(word) {
            return *number;
        }
        let number = u32::try_from(self.words.len()).unwrap_or(u32::MAX);
        self.words.push(word.to_owned());
        self.numbers.insert(word.to_owned(), number);
        number
    }

    /// All, in the order of their numbers.
    pub fn into_words(self) -> Vec<String> {
        self.words
    }

    /// The number's word.
    pub fn word(&self, number: u32) -> &str {
        self.words.get(number as usize).map_or("?", String::as_str)
    }
}
