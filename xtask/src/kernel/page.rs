//! The generated matrix of conformance/kernel/README.md: what passed, by program and place.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::Ran;
use super::case::{Case, Place, Program};
use super::links::Driver;
use crate::Result;
use crate::conformance::Verdict;
use crate::pages::Part;

/// The part of the page that is about a driver.
const fn part(driver: Driver) -> Part {
    let (begin, end) = match driver {
        Driver::Rxe => (
            "<!-- rxe: begin (written by `cargo xtask kernel --full --write`, do not edit) -->",
            "<!-- rxe: end -->",
        ),
        Driver::Siw => (
            "<!-- siw: begin (written by `cargo xtask kernel --full --write`, do not edit) -->",
            "<!-- siw: end -->",
        ),
    };
    Part { page: "conformance/kernel/README.md", begin, end }
}

/// Writes the matrix of each driver that there are results of, and what it ran against.
pub(super) fn write(ran: &[Ran<'_>], peer: &str) -> Result {
    for driver in [Driver::Rxe, Driver::Siw] {
        let is_of = |ran: &&Ran<'_>| ran.case.place.link.driver == driver;
        if !ran.iter().any(|ran| is_of(&ran)) {
            continue;
        }
        let mut text = format!("Peer: {peer}, `{}`.\n\n", driver.module());
        for meaning in meanings(ran.iter().filter(is_of).map(|ran| ran.case)) {
            // Writing to a String does not fail.
            let _ = writeln!(text, "- {meaning}");
        }
        let _ = write!(text, "\n{}", matrix(driver, ran));
        let changed = part(driver).write(&text)?;
        let (page, what) = (part(driver).page, driver.name());
        println!("{page}, {what}: {}", if changed { "is rewritten" } else { "was right" });
    }
    Ok(())
}

/// What the words for variants mean that there are among cases.
fn meanings<'a>(cases: impl Iterator<Item = &'a Case>) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut all: Vec<_> = cases.collect();
    all.sort_by_key(|case| (case.fault, case.agreed, case.variant()));
    for case in all {
        let meaning = match case.variant() {
            "" => continue,
            "forged" => "the guest sends Vernic packets with a wrong ICRC meanwhile",
            "kill-server" | "kill-client" => "this side is killed meanwhile",
            "refused" => "nobody listens on the port that the client asks for",
            "reset" => "the connection is reset in the middle of a message",
            word if word == case.fault.name() => case.fault.meaning(),
            _ => case.agreed.meaning(),
        };
        let line = format!("*{}*: {meaning}", case.variant());
        if !words.contains(&line) {
            words.push(line);
        }
    }
    words
}

/// A row per program, service and fault, a column per place: passed of run, or the number that all
/// passed.
pub(super) fn matrix(driver: Driver, ran: &[Ran<'_>]) -> String {
    let places: Vec<String> = Place::of(driver).into_iter().map(Place::name).collect();
    let mut rows: BTreeMap<String, BTreeMap<String, [usize; 2]>> = BTreeMap::new();
    for Ran { case, verdict, .. } in ran.iter().filter(|ran| ran.case.place.link.driver == driver) {
        let passed = matches!(verdict, Verdict::Passed | Verdict::Again);
        let cell = rows.entry(row(case)).or_default().entry(case.place.name()).or_default();
        cell[0] += usize::from(passed);
        cell[1] += 1;
    }
    let mut text = format!("| cases | {} |\n|---|", places.join(" | "));
    text += &"---|".repeat(places.len());
    text.push('\n');
    for (row, cells) in rows {
        let cell = |place: &String| match cells.get(place) {
            None => String::new(),
            Some([passed, all]) if passed == all => passed.to_string(),
            Some([passed, all]) => format!("{passed} of {all}"),
        };
        let cells: Vec<String> = places.iter().map(cell).collect();
        let _ = writeln!(text, "| {row} | {} |", cells.join(" | "));
    }
    text
}

/// The name of a case's row: our own scenarios by themselves, programs of others by service.
fn row(case: &Case) -> String {
    let Case { program, service, .. } = case;
    let what = match case.kind {
        Program::Probe => format!("`{program}` {}", case.scenario()),
        Program::Manager(_) if program.starts_with("ib_") => format!("`{program}` -R"),
        _ if service.is_empty() => format!("`{program}`"),
        _ => format!("`{program}` {service}"),
    };
    match case.variant() {
        "" => what,
        variant => format!("{what}, *{variant}*"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::case::Fault;
    use super::super::cases;
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_words_of_a_table_are_explained_and_no_others() {
        let cases = cases::all();
        let of = |driver| {
            let cases = cases.iter().filter(move |case| case.place.link.driver == driver);
            meanings(cases).join("\n")
        };
        let (rxe, siw) = (of(Driver::Rxe), of(Driver::Siw));
        assert!(rxe.contains("*corrupt*: Vernic damages") && !rxe.contains("*plain*"), "{rxe}");
        assert!(siw.contains("*plain*: neither end") && !siw.contains("*corrupt*"), "{siw}");
        assert!(
            siw.contains("*kill-client*: this side") && siw.contains("*reset*: the conn"),
            "{siw}"
        );
    }

    #[test]
    fn a_row_counts_what_passed_in_each_place() {
        let cases = cases::all();
        let of = |place: &str| {
            let found = cases.iter().filter(|c| c.program == "ib_write_bw" && c.service == "RC");
            found.filter(|c| c.place.name() == place && c.fault == Fault::None).collect::<Vec<_>>()
        };
        let (here, there) = (of("ipv4-1500-to-kernel"), of("ipv6-9000-from-kernel"));
        let verdicts =
            [(here[0], Verdict::Passed), (here[1], Verdict::Failed), (there[0], Verdict::Again)];
        let ran: Vec<Ran<'_>> = verdicts
            .into_iter()
            .map(|(case, verdict)| Ran { case, verdict, time: Duration::ZERO })
            .collect();
        let text = matrix(Driver::Rxe, &ran);
        let row = text.lines().last().unwrap();
        assert_eq!(row, "| `ib_write_bw` RC | 1 of 2 |  |  |  |  |  |  | 1 |");
    }
}
