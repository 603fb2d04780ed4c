//! The generated parts of BENCHMARKS.md and of the pages of benchmarks in docs/.

use std::fmt::Write;

use super::bars;
use super::headline;
use super::judged::{bars_table, counts};
use super::kept::Kept;
use super::programs::{self, Chart, Programs};
use crate::Result;
use crate::pages::Part;

/// The root from a page in docs/.
const UP: &str = "../";

const fn part(page: &'static str, begin: &'static str, end: &'static str) -> Part {
    Part { page, begin, end }
}

/// A part: where it stands, and what it says.
struct Written(Part, fn(&Kept) -> Result<String>);

const PARTS: [Written; 7] = [
    Written(
        part(
            "BENCHMARKS.md",
            "<!-- first screen: begin (written by `cargo xtask bench`, do not edit) -->",
            "<!-- first screen: end -->",
        ),
        first_screen,
    ),
    Written(
        part(
            "BENCHMARKS.md",
            "<!-- machines: begin (written by `cargo xtask bench`, do not edit) -->",
            "<!-- machines: end -->",
        ),
        |kept| Ok(machines(kept)),
    ),
    Written(
        part(
            "docs/benchmark-bars.md",
            "<!-- bars: begin (written by `cargo xtask bench`, do not edit) -->",
            "<!-- bars: end -->",
        ),
        |kept| Ok(all_bars(kept)),
    ),
    Written(
        part(
            "docs/benchmark-one-host.md",
            "<!-- one host: begin (written by `cargo xtask bench --one-host`, do not edit) -->",
            "<!-- one host: end -->",
        ),
        |kept| Ok(bars_table(&programs::one_host::judge(&kept.one_host.programs))),
    ),
    Written(
        part(
            "docs/benchmark-growth.md",
            "<!-- growth: begin (written by `cargo xtask bench --growth`, do not edit) -->",
            "<!-- growth: end -->",
        ),
        |kept| Ok(kept.growth.ranges(UP)),
    ),
    Written(
        part(
            "docs/benchmark-guest.md",
            "<!-- guest: begin (written by `cargo xtask bench --guest`, do not edit) -->",
            "<!-- guest: end -->",
        ),
        |kept| Ok(format!("{}\n{}", kept.guest.tables(), kept.guest.chart().markdown(UP))),
    ),
    Written(
        part(
            "docs/benchmark-readings.md",
            "<!-- readings: begin (written by `cargo xtask bench`, do not edit) -->",
            "<!-- readings: end -->",
        ),
        |kept| Ok(readings(kept)),
    ),
];

/// Writes every part of every page, and draws the charts, from the readings that are kept.
pub(crate) fn write() -> Result {
    let kept = Kept::read()?;
    for Written(part, content) in &PARTS {
        if part.write(&content(&kept)?)? {
            println!("{} is rewritten", part.page);
        }
    }
    if let Some(programs) = &kept.whole.programs {
        programs.draw()?;
    }
    kept.growth.draw()?;
    kept.guest.draw()
}

/// The table of what matters most, and three charts.
fn first_screen(kept: &Kept) -> Result<String> {
    let mut text = headline::table(kept)?;
    if let Some(Programs { curves, .. }) = &kept.whole.programs {
        for chart in [Chart::Bandwidth, Chart::Latency] {
            let _ = write!(text, "\n{}\n", programs::shown(chart, curves).markdown(""));
        }
    }
    let _ = write!(text, "\n{}\n", kept.growth.chart().markdown(""));
    Ok(text)
}

/// A line for each run that the table names.
fn machines(kept: &Kept) -> String {
    let unknown = "an unknown machine".to_owned();
    let whole = kept.whole.machine.as_ref().unwrap_or(&unknown);
    let ran = |programs: &Programs| {
        format!("medians of {} rounds, {}", programs.rounds(), programs.cores)
    };
    let of_whole = kept.whole.programs.as_ref().map(ran).unwrap_or_default();
    let (one_host, growth, guest) = (&kept.one_host, &kept.growth, &kept.guest);
    format!(
        "- **{}** `cargo xtask bench`: {of_whole}. {whole}.\n\
         - **{}** `cargo xtask bench --one-host`: {}. {}.\n\
         - **{}** `cargo xtask bench --growth`: medians of {} rounds. {}.\n\
         - **{}** `cargo xtask bench --guest`: {}. Guest: {}. Emulated by: {}.\n\
         - **{}** `tools/networks/measure.py`: [two hosts and a network that is not perfect](docs/network-figures.md).\n",
        headline::WHOLE,
        headline::ONE_HOST,
        ran(&one_host.programs),
        one_host.machine,
        headline::GROWTH,
        growth.rounds,
        growth.machine,
        headline::GUEST,
        ran(&guest.programs),
        guest.guest,
        guest.machine,
        headline::NETWORK,
    )
}

/// How many bars are reached, and those of a whole run and of growth.
fn all_bars(kept: &Kept) -> String {
    let of_programs = kept.whole.programs.as_ref().map(programs::judge).unwrap_or_default();
    let of_bench = bars::judge(&kept.whole);
    let (growth, guest) = (kept.growth.judge(), kept.guest.judge());
    let one_host = programs::one_host::judge(&kept.one_host.programs);
    format!(
        "- Unmodified programs, below: {}.\n\
         - `vernic bench`, below: {}.\n\
         - [Many queue pairs](benchmark-growth.md), below: {}.\n\
         - [One host](benchmark-one-host.md): {}.\n\
         - [In the guest](benchmark-guest.md): {}.\n\n\
         ## Unmodified programs\n\n{}\n## `vernic bench`\n\n{}\n## Many queue pairs\n\n{}",
        counts(&of_programs),
        counts(&of_bench),
        counts(&growth),
        counts(&one_host),
        counts(&guest),
        bars_table(&of_programs),
        bars_table(&of_bench),
        bars_table(&growth),
    )
}

/// The medians behind the bars and the charts.
fn readings(kept: &Kept) -> String {
    let mut text = String::new();
    if let Some(programs) = &kept.whole.programs {
        let curves = &programs.curves;
        let _ = write!(text, "## Unmodified programs\n\n{}", programs::table(programs));
        let _ =
            write!(text, "\n## The C ABI beside the Rust API\n\n{}", programs::api_table(programs));
        text += "\n## Behind the charts\n";
        for chart in Chart::ALL {
            let _ = write!(text, "\n{}", programs::curves_table(chart, curves));
        }
        let _ = write!(text, "\n{}\n", programs::shown(Chart::Rate, curves).markdown(UP));
        let _ = write!(
            text,
            "\n## Processor time, start and end of the programs included\n\n{}",
            programs::cpu_table(curves)
        );
    }
    let one_host = programs::one_host::table(&kept.one_host.programs);
    let _ = write!(text, "\n## Within one host, its own run\n\n{one_host}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_say_what_the_readings_say() {
        let kept = Kept::read().unwrap();
        for Written(part, content) in &PARTS {
            let is_so = part.is(&content(&kept).unwrap()).unwrap();
            let again = "cargo xtask bench --from charts/readings/bench.json";
            assert!(is_so, "{}: another content than its readings have: {again}", part.page);
        }
    }

    #[test]
    fn a_newcomer_reads_one_screen() {
        let page = PARTS[0].0.whole().unwrap();
        assert!(page.len() <= 12 * 1024, "BENCHMARKS.md: {} bytes", page.len());
    }
}
