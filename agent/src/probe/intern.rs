//! Texts that come again and again are stored once: a client's samples share
//! their backend, version, peer and error texts.

use std::sync::Arc;

const KEPT: usize = 32;

/// The texts one client has seen lately.
#[derive(Debug, Default)]
pub struct Interner {
    seen: Vec<Arc<str>>,
}

impl Interner {
    /// The one copy of `text`.
    pub fn get(&mut self, text: &str) -> Arc<str> {
        if let Some(at) = self.seen.iter().rposition(|known| &**known == text) {
            return self.seen[at].clone();
        }
        if self.seen.len() == KEPT {
            self.seen.remove(0);
        }
        let new: Arc<str> = text.into();
        self.seen.push(new.clone());
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_are_one() {
        let mut interner = Interner::default();
        let first = interner.get("db-1:3306");
        assert!(Arc::ptr_eq(&first, &interner.get("db-1:3306")));
        for i in 0..100 {
            interner.get(&i.to_string());
        }
        assert!(interner.seen.len() <= KEPT);
        assert_eq!(&*interner.get("db-1:3306"), "db-1:3306");
    }
}
