//! `openapi`: the document a server of this version serves, without starting one.

use clap::Args;

use super::{Exit, say};

/// Prints the OpenAPI 3.1 document of the HTTP interface.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  doorbuster openapi > openapi.json
A running server has it at /api/openapi.json, and a page to read it at /api/docs.")]
pub struct OpenApi;

impl OpenApi {
    pub fn run(self) -> anyhow::Result<Exit> {
        say::answer(&serde_json::to_string_pretty(&doorbuster::edge::openapi::document())?);
        Ok(Exit::Done)
    }
}
