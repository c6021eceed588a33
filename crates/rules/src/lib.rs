//! The rules of a flash sale, pure: no I/O, no clock, no async. Everything here is decided from its arguments alone.

pub mod buyer;

pub mod time;
