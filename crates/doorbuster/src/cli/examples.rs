//! Examples of commands within commands, for their `--help`. Those of the commands themselves stand with them.

use clap::Command;

use super::sale::SALE_FILE;

/// Command, command within it, examples.
const EXAMPLES: &[(&str, &str, &[&str])] = &[
    ("sale", "create", &["night.json", "night.json --publish", "- < night.json"]),
    ("sale", "list", &["", "--json | jq '.items[].title'"]),
    ("sale", "show", &["01m7h12ebbvd5va6f5pvjryvdn"]),
    ("sale", "publish", &["01m7h12ebbvd5va6f5pvjryvdn"]),
    ("sale", "pause", &["01m7h12ebbvd5va6f5pvjryvdn"]),
    ("sale", "resume", &["01m7h12ebbvd5va6f5pvjryvdn"]),
    ("sale", "end", &["01m7h12ebbvd5va6f5pvjryvdn"]),
    ("sale", "stats", &["01m7h12ebbvd5va6f5pvjryvdn", "01m7h12ebbvd5va6f5pvjryvdn --watch"]),
    (
        "sale",
        "stock",
        &["01m7h12ebb6w9scvfaw00tvy23 +50", "01m7h12ebb6w9scvfaw00tvy23 -20 --change-id broken-bottles"],
    ),
    ("sale", "delete", &["01m7h12ebbvd5va6f5pvjryvdn"]),
    ("orders", "list", &["--state awaiting_payment", "--buyer ann --json"]),
    ("orders", "show", &["01m7h12eefchxsys8mbnadytqv"]),
    ("orders", "export", &["> orders.csv", "--sale 01m7h12ebbvd5va6f5pvjryvdn --state paid --out paid.csv"]),
    ("payments", "list", &["--state refund_failed", "--order 01m7h12eefchxsys8mbnadytqv --json"]),
    ("payments", "show", &["01m7h12f0c6w9scvfaw00tvy24"]),
    ("payments", "refund", &["01m7h12eefchxsys8mbnadytqv", "01m7h12eefchxsys8mbnadytqv --keep-units"]),
    ("payments", "retry", &["01m7h12f0c6w9scvfaw00tvy24"]),
    ("blocks", "list", &["", "--json | jq '.items[].buyer'"]),
    ("blocks", "show", &["ann"]),
    ("blocks", "set", &["ann --until 72h", "ann --until 2026-12-24T00:00:00Z --note resells"]),
    ("blocks", "lift", &["ann", "ann --strike 7"]),
    ("blocks", "strike", &["ann", "ann --note resells"]),
    ("events", "tail", &["--types 'order.*'", "--since 2h --no-follow", "--json | jq .type"]),
    ("webhooks", "list", &["", "--json"]),
    (
        "webhooks",
        "add",
        &["https://shop.example/hooks", "https://shop.example/hooks --types 'order.*,sale.closed'"],
    ),
    ("webhooks", "show", &["01m7h12g3x6w9scvfaw00tvy25"]),
    (
        "webhooks",
        "set",
        &[
            "01m7h12g3x6w9scvfaw00tvy25 --enable",
            "01m7h12g3x6w9scvfaw00tvy25 --url https://shop.example/new --types all",
        ],
    ),
    ("webhooks", "remove", &["01m7h12g3x6w9scvfaw00tvy25"]),
    ("webhooks", "test", &["01m7h12g3x6w9scvfaw00tvy25"]),
    (
        "webhooks",
        "replay",
        &["01m7h12g3x6w9scvfaw00tvy25", "01m7h12g3x6w9scvfaw00tvy25 --since 2026-12-01T12:00:00Z"],
    ),
    ("webhooks", "rotate", &["01m7h12g3x6w9scvfaw00tvy25"]),
    ("config", "check", &["--config shop.toml", "--config shop.toml --json | jq .problems"]),
    ("config", "print", &["--config shop.toml", "--set limits.in_flight=8192 --json | jq .limits"]),
    ("config", "default", &["> shop.toml"]),
];

/// The same commands, with their examples.
pub fn added_to(command: Command) -> Command {
    EXAMPLES.iter().fold(command, |all, (outer, inner, examples)| {
        let line =
            |example: &&str| format!("\n  {}", format!("doorbuster {outer} {inner} {example}").trim_end());
        let more =
            if (*outer, *inner) == ("sale", "create") { format!("\n{SALE_FILE}") } else { String::new() };
        let text = format!("Examples:{}{more}", examples.iter().map(line).collect::<String>());
        all.mut_subcommand(outer, |outer| outer.mut_subcommand(inner, |inner| inner.after_help(text)))
    })
}
