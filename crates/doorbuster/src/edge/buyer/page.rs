//! `?limit=` and `?cursor=`: how every list is read in pages.

use std::fmt::Display;
use std::str::FromStr;

use serde::Deserialize;

use crate::edge::extract::{page_limit, parse_named};
use crate::edge::refusal::Refusal;

#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct PageQuery {
    /// How many items at most.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 200, default = 50)]
    limit: Option<String>,
    /// The `next_cursor` of the page before.
    #[param(pattern = "^([0-9]{1,19}|queued-[0-7][0-9a-hjkmnp-tv-zA-HJKMNP-TV-Z]{25})$")]
    cursor: Option<String>,
}

impl PageQuery {
    pub fn limit(&self) -> Result<u32, Refusal> {
        page_limit(self.limit.as_deref())
    }

    pub fn cursor<T: FromStr<Err: Display>>(&self) -> Result<Option<T>, Refusal> {
        self.cursor.as_deref().map(|text| parse_named("cursor", text)).transpose()
    }
}
