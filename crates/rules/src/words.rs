//! Closed sets of words: enums whose variants have one stable name each, in tables, JSON and logs alike.

/// Gives an enum `ALL`, `as_str` and `parse`, from its variants and their words.
macro_rules! words {
    ($set:ident { $($variant:ident = $word:literal,)+ }) => {
        impl $set {
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }

            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|word| word.as_str() == text)
            }
        }
    };
}

pub(crate) use words;
