//! The edge: where all buyers arrive and most of them are answered.

/// Who may ask how fast, and how much may be under way at once.
pub mod limits;
