//! Unmodified programs on Vernic, beside what they would do without it.
//!
//! Perftest under `vernic run`, and in the same rounds iperf3, UCX over TCP and over shared memory,
//! and `vernic bench` and a loop of calls that do through the Rust API what the programs do through
//! libibverbs. Both ends of everything are processes of this machine that talk over the loopback
//! interface, each on a core of its own where there are two, and always the same.
//!
//! | file | owns |
//! |---|---|
//! | `table` | what is measured, with which options |
//! | `work` | the commands, and what is read from their output |
//! | `probe` | what the machine itself does: a word from core to core, a copy |
//! | `setup` | what must be built and installed first |
//! | `pair` | a server and a client, started, awaited, ended |
//! | `output` | what each program prints, read |
//! | `sweep` | the same work over sizes and numbers of queue pairs, beside others |
//! | `chart` | what `sweep` measured, drawn |
//! | `series`, `median` | the readings of all rounds: the JSON, medians, ratios |
//! | `bars` | the figures this project means to reach |
//! | `one_host` | what goes on within one host: its entries and bars |
//! | `namespace` | a network of this measurement's own |
//! | `page` | the tables of pages |

mod bars;
mod chart;
mod median;
mod namespace;
pub(super) mod one_host;
mod output;
mod page;
mod pair;
mod probe;
mod series;
mod setup;
mod sweep;
mod table;
mod work;

pub(crate) use bars::judge;
pub(crate) use chart::shown;
pub(crate) use page::{api_table, cost, cpu_table, curves_table, table};
pub(crate) use series::{Programs, Series};
pub(crate) use setup::Setup;
pub(crate) use sweep::Chart;

pub(super) use output::perftest_latency;
pub(crate) use output::perftest_low_bandwidth;

use crate::Result;
use table::ENTRIES;
use work::Entry;

/// Rounds of a whole run: an odd number, so that a median is a reading.
const ROUNDS: usize = 7;
/// Rounds of a quick one.
const QUICK_ROUNDS: usize = 3;

/// Measures once more what failed: what stands beside it has its figures, and a program may lose
/// its port to another.
fn again<T>(mut measure: impl FnMut() -> Result<T>) -> Result<T> {
    measure().or_else(|why| {
        println!("once more, after: {why}");
        measure()
    })
}

/// How many rounds there are if nobody says.
fn rounds(setup: &Setup) -> usize {
    if setup.quick { QUICK_ROUNDS } else { ROUNDS }
}

/// Measures everything, in rounds. What cannot be measured here says why in its series.
pub(crate) fn measure(setup: &Setup) -> Programs {
    let series = in_rounds(ENTRIES, setup, rounds(setup));
    let curves = sweep::measure(setup);
    Programs { cores: setup.cores.to_owned(), series, curves }
}

/// Every entry once in each round; every other round backwards, so that none always comes after the
/// same one.
fn in_rounds(entries: &[Entry], setup: &Setup, rounds: usize) -> Vec<Series> {
    let mut series: Vec<Series> = entries.iter().map(|entry| entry.begin(setup)).collect();
    for round in 1..=rounds {
        let mut pairs: Vec<_> = entries.iter().zip(&mut series).collect();
        if round % 2 == 0 {
            pairs.reverse();
        }
        for (entry, series) in pairs {
            if series.failure.is_some() {
                continue;
            }
            match again(|| entry.measure(setup)) {
                Ok(reading) => {
                    println!(
                        "round {round} of {rounds}: {}: {reading:.3} {}",
                        entry.name, series.unit
                    );
                    series.readings.push(reading);
                }
                Err(why) => {
                    let why = setup.without_folders(&why);
                    println!("round {round} of {rounds}: {}: {why}", entry.name);
                    series.failure = Some(why);
                }
            }
        }
    }
    series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_tried_once_more_and_not_twice() {
        let mut left = vec![Ok(3), Err("second".into()), Err("first".into())];
        assert_eq!(again(|| left.pop().unwrap()), Err("second".to_owned()));
        assert_eq!(again(|| left.pop().unwrap()), Ok(3));
        let mut left = vec![Ok(1), Err("first".to_owned())];
        assert_eq!(again(|| left.pop().unwrap()), Ok(1));
    }
}
