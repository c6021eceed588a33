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

/// Reads such an enum from its word alone: serde would also take `{"word": null}`. The enum says
/// `#[serde(try_from = "String")]`.
macro_rules! read_as_text {
    ($set:ident) => {
        impl TryFrom<String> for $set {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                Self::parse(&text).ok_or_else(|| {
                    let words = Self::ALL.map(Self::as_str).join(", ");
                    format!("must be one of {words}")
                })
            }
        }
    };
}

pub(crate) use {read_as_text, words};
