//! Writes `docs/performance.md` and its pictures from a report. What people wrote between the marks is kept word for
//! word; everything else is replaced.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, ensure};

use crate::report::{Report, Table};
use crate::svg;

const BEGIN: &str = "<!-- written by people: begin; the generator keeps everything up to the end mark -->";
const END: &str = "<!-- written by people: end -->";

/// What stands between the marks in a new document.
const NOTHING_YET: &str = "\n## What was tried and what it gave\n\nNothing has been written here yet.\n\n";

pub fn write(report: &Report, root: &Path) -> anyhow::Result<()> {
    let docs = root.join("docs");
    ensure!(docs.is_dir(), "{} is not the root of the workspace", root.display());
    let path = docs.join("performance.md");
    let kept = match std::fs::read_to_string(&path) {
        Ok(text) => by_people(&text).with_context(|| format!("{} has lost its marks", path.display()))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => NOTHING_YET.to_owned(),
        Err(error) => return Err(error.into()),
    };
    let pictures = docs.join("performance");
    std::fs::create_dir_all(&pictures)?;
    for picture in &report.pictures {
        std::fs::write(pictures.join(picture.file), svg::draw(picture))?;
    }
    std::fs::write(&path, text(report, &kept))?;
    println!("written: {} and {} pictures beside it", path.display(), report.pictures.len());
    Ok(())
}

/// Losing what people wrote is worse than not writing: without both marks there is no new document.
fn by_people(text: &str) -> Option<String> {
    let (_, rest) = text.split_once(BEGIN)?;
    let (kept, _) = rest.split_once(END)?;
    Some(kept.to_owned())
}

fn text(report: &Report, kept: &str) -> String {
    let quick = report.conditions.get("quick").is_some_and(|quick| quick == true);
    let mut out = String::from("# Performance\n\n");
    out += "Written by `cargo xtask bench`. Everything is one machine and loopback, and the load generator shares its \
            cores: rates are only worth something against the other rates of the same run. Trust ratios to about \
            ten percent, and CPU per request more than rates.\n\n";
    if quick {
        out += "**This is a quick run** (`--quick`): short runs and few repetitions, good for a look, not for a \
                claim.\n\n";
    }
    figures(&mut out, report);
    for picture in &report.pictures {
        let _ = writeln!(out, "![{}](performance/{})\n", picture.title, picture.file);
    }
    for table in &report.tables {
        write_table(&mut out, table);
    }
    conditions(&mut out, report);
    out += METHOD;
    let _ = writeln!(out, "{BEGIN}{kept}{END}");
    out
}

fn figures(out: &mut String, report: &Report) {
    out.push_str(
        "## Figures\n\n| figure | value | must / target | reached | what |\n|---|---:|---|---|---|\n",
    );
    for figure in &report.figures {
        let value = match figure.unit {
            "1/s" => format!("{:.0}/s", figure.value),
            "x" => format!("{:.2}", figure.value),
            "" => format!("{:.0}", figure.value),
            unit => format!("{:.2} {unit}", figure.value),
        };
        let (goal, verdict) = (figure.goal.text(), figure.goal.verdict(figure.value));
        let _ = writeln!(out, "| `{}` | {value} | {goal} | {verdict} | {} |", figure.name, figure.what);
    }
    out.push('\n');
    for (name, why) in &report.absent {
        let _ = writeln!(out, "- `{name}`: no figure, because {why}");
    }
    if !report.absent.is_empty() {
        out.push('\n');
    }
}

fn write_table(out: &mut String, table: &Table) {
    let _ = writeln!(out, "## {}\n\n| {} |", table.title, table.head.join(" | "));
    let _ = writeln!(out, "|{}", "---|".repeat(table.head.len()));
    for row in &table.rows {
        let _ = writeln!(out, "| {} |", row.join(" | "));
    }
    out.push('\n');
}

fn conditions(out: &mut String, report: &Report) {
    out.push_str("## Conditions\n\n| | |\n|---|---|\n");
    for (name, value) in &report.conditions {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let _ = writeln!(out, "| {} | {} |", name.replace('_', " "), value.replace('|', "\\|"));
    }
    out.push('\n');
}

const METHOD: &str = "\
## How it is measured

- **Ours** is the release binary in a process of its own, as users run it: a distinct valid pass per request, metrics,
  rate limits and security headers on. Limits are raised so that one generator can be a whole crowd; none is off. Its audits
  rest while rates, latencies and spreads are measured, so that none runs into one contender's turn; they have a figure of
  their own.
- **Accepts** are answered after the journal's sync, and the ledger follows in the same run: the time and the CPU that it
  needs to catch up count.
- **The ceiling** is a bare hyper server with the same allocator and build profile that reads the same requests and
  answers with as many bytes as a refusal or an accept of ours has, in two layouts; the faster one counts.
- **Bytes for bytes** is a server that knows no HTTP: it reads what comes and writes the same answer again and again. Most
  of the CPU of a refusal is the kernel's, for one read and one write on loopback, whoever the server is: no server that
  reads and writes once per request can be faster than this one.
- **The rivals** do less than ours: no pass to check, no metrics, no security headers, and no limits but in one. They look at
  which offer a request is for, and to sell at who asks. Redis keeps nothing on disk unless it is said, and is asked over a Unix
  socket through a pool of kept connections, one script call per request. nginx has as many workers as there are cores;
  Node too. They send as many bytes as ours. The local flag is looked at before Redis and shared by nginx's workers. With
  nginx's own limit of requests for each buyer beside it (as many per second as ours allows, for as many buyers) stands what
  a shop would dare to open; with a variable of each worker instead of the flag, and no limit, nginx does next to nothing
  and is about as fast as the ceiling.
- **Names** of buyers are in order in the figures, as in most load generators. That is kind to our index of buyers, and
  Redis does not care: so the same with scattered names stands beside it, as buyers come in reality.
- Everybody takes turns in one run. A figure is the median of the ratios of the turns, after a warm-up that is thrown
  away. CPU is user and system time of all processes of a contender. Before each run the page cache is written out.
- **Half load**: in each of seven rounds half of the accepts per second measured just before, open loop on 1,024
  connections; latency counts from when a request was due. The figure is that of the median round. A sync of the disk that
  takes 20 ms is in everybody's p99 who comes in that time, so the disk's own p99, measured alone in the same minute with
  the journal's rhythm, stands beside ours; so does that of a bare server, since a host that lends a processor to others
  for 15 ms is in everybody's p99, too.
- **Passes** are fetched by distinct buyers, each with a signed token of its own, on the connections of the closed loop.
- **Overload**: the server is started under a fifth of a core in periods of 10 ms, as in a container, and so has one
  thread for its edge. Each buyer comes on a connection of their own, waits at most a second (less where so many cannot be open at once), and leaves. The peak is what the best served
  of 128, 256 and 512 buyers at a time get, or more if more is served when more come, whatever the server does. So
  it is measured just before the overload, in which ten times as many come, and again just after it; the mean counts. Goodput is answers of 202 and 409 per second. With less than 95 % of the
  arrivals achieved there is no figure.
- **Slow sockets**: 10,000 come one after the other, begin a request, send one header every 4 seconds, and come back when
  they are thrown out; with fewer than 9,000 of them open on average there is no figure. The load is half of the peak,
  open loop, on connections opened after them.
- **The crowd**: simulated buyers of `stampede` who load the page, fetch a pass, try, and follow what they won, one in
  ten. Their CPU per order POST is compared with the server's for all of it. They run inside the benchmark, with its allocator.
- **Settling**: notifications of a provider for orders that wait for money, 1,000 per second on 32 connections, beside
  10,000 accepts per second on 1,024, both open loop. A notification is answered when its money is applied and durable.
- **Timeouts**: 100,000 unpaid orders. The server stands still until all of them are due; the time runs from then until
  the last one is closed, its buyer struck and its unit free, while others buy.
- **Audit**: an audit of recorded orders beside a crowd that buys, and how long it held up a try at most.
- **Webhooks**: orders are recorded while the webhook is disabled; then it is enabled, and the time runs until the
  ledger knows that the receiver has all of their events. The receiver answers at once, and signing, order per order id
  and ten requests at a time are as always.
- **Sockets**: 200 buyers with an open WebSocket order and cancel, 500 changes per second. The time runs from sending the
  request until the socket hears of the change: the request's way and the sync of the disk are in it.
- **Instructions** are counted, and requests for memory noticed, by callgrind on one thread, after a warm-up: see
  `crates/doorbuster/benches/instructions`. They do not depend on what else the machine does. `cargo xtask test` holds the
  same path in the tests' build, where our own code is not optimised and counts are higher, to a budget.

## How to repeat it

```sh
cargo xtask bench                 # everything, up to 40 minutes; writes this page
cargo xtask bench --quick         # a few minutes
cargo xtask bench --json out.json # figures, samples, conditions and the servers' command lines
cargo xtask bench --only http     # one group; `cargo xtask bench --help` names them; does not write this page
```

nginx, its Lua module and Redis come from Debian packages, ioredis from npm; the command installs what is missing (as
root, else it says how), starts everything on loopback in temporary folders, and ends it.

";
