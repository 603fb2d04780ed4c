//! Results of this run and of earlier ones: the matrix of all cases may come from several runs.
//!
//! A file with a line for each case that was run, its name and its verdict; the last line of a name
//! counts.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::time::Duration;

use super::Ran;
use super::case::Case;
use super::peer::FOLDER;
use crate::conformance::Verdict;
use crate::{Result, root};

/// The file in the folder of runs; whoever removes it begins anew.
const FILE: &str = "results.tsv";

/// Adds the result of a case.
pub(super) fn record(ran: &Ran<'_>) -> Result {
    let path = root().join(FOLDER).join(FILE);
    let why = |e| format!("{}: {e}", path.display());
    let mut file = OpenOptions::new().create(true).append(true).open(&path).map_err(why)?;
    writeln!(file, "{}\t{}", ran.case.name(), ran.verdict.word()).map_err(why)
}

/// The results there are, in the order of the cases. Times are not kept.
pub(super) fn all(cases: &[Case]) -> Result<Vec<Ran<'_>>> {
    let path = root().join(FOLDER).join(FILE);
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(parse(&text, cases))
}

fn parse<'a>(text: &str, cases: &'a [Case]) -> Vec<Ran<'a>> {
    let lines = text.lines().filter_map(|line| line.split_once('\t'));
    let of_word = |word: &str| Verdict::ALL.into_iter().find(|verdict| verdict.word() == word);
    let last: BTreeMap<&str, Verdict> =
        lines.filter_map(|(name, word)| Some((name, of_word(word)?))).collect();
    let ran = |case| {
        let verdict = *last.get(Case::name(case).as_str())?;
        Some(Ran { case, verdict, time: Duration::ZERO })
    };
    cases.iter().filter_map(ran).collect()
}

#[cfg(test)]
mod tests {
    use super::super::cases;
    use super::*;

    #[test]
    fn the_last_result_of_a_case_counts_and_strangers_do_not() {
        let cases = cases::all();
        let [a, b] = [cases[0].name(), cases[9].name()];
        let text =
            format!("{b}\tpassed\n{a}\tFAILED\nno case\tpassed\n{a}\tpassed\n{b}\tnonsense\n");
        let found: Vec<_> =
            parse(&text, &cases).into_iter().map(|ran| (ran.case.name(), ran.verdict)).collect();
        assert_eq!(found, [(a, Verdict::Passed), (b, Verdict::Passed)]);
    }
}
