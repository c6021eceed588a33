//! `?limit=` and `?cursor=`: how every list is read in pages.

use std::fmt::Display;
use std::str::FromStr;

use serde::Deserialize;

use crate::edge::extract::parse_named;
use crate::edge::refusal::Refusal;

/// Most items of one page.
const ITEMS_MAX: u32 = 200;

/// Items of a page whose reader does not say.
const ITEMS_DEFAULT: u32 = 50;

#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct PageQuery {
    /// How many items at most.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 200, default = 50)]
    limit: Option<String>,
    /// The `next_cursor` of the page before.
    #[param(pattern = "^[0-9]{1,19}$")]
    cursor: Option<String>,
}

impl PageQuery {
    pub fn limit(&self) -> Result<u32, Refusal> {
        let Some(text) = &self.limit else { return Ok(ITEMS_DEFAULT) };
        let limit = parse_named("limit", text)?;
        if (1..=ITEMS_MAX).contains(&limit) {
            Ok(limit)
        } else {
            Err(Refusal::field("limit", format!("must lie between 1 and {ITEMS_MAX}")))
        }
    }

    pub fn cursor<T: FromStr<Err: Display>>(&self) -> Result<Option<T>, Refusal> {
        self.cursor.as_deref().map(|text| parse_named("cursor", text)).transpose()
    }
}
