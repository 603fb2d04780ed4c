//! The generated matrix of conformance/kernel/README.md: what passed, by program and place.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::Ran;
use super::cases::{Case, Fault, Place, Program};
use super::iwarp::Agreed;
use super::links::Driver;
use crate::Result;
use crate::conformance::Verdict;
use crate::pages::Part;

const PART: Part = Part {
    page: "conformance/kernel/README.md",
    begin: "<!-- matrix: begin (written by `cargo xtask kernel --full --write`, do not edit) -->",
    end: "<!-- matrix: end -->",
};

/// Writes the matrix of a run, and what it ran against.
pub(super) fn write(ran: &[Ran<'_>], peer: &str) -> Result {
    let mut text = format!("Peer: {peer}.\n\n");
    for fault in [Fault::Loss, Fault::Corrupt, Fault::Link, Fault::Late, Fault::Silent] {
        // Writing to a String does not fail.
        let _ = writeln!(text, "- *{}*: {}", fault.name(), fault.meaning());
    }
    for agreed in Agreed::SPECIAL {
        let _ = writeln!(text, "- *{}*: {}", agreed.name(), agreed.meaning());
    }
    text += "- *forged*: the guest sends Vernic packets with a wrong ICRC meanwhile
- *kill-server*, *kill-client*: this side is killed meanwhile
- *refused*: nobody listens on the port that the client asks for\n\n";
    for driver in [Driver::Rxe, Driver::Siw] {
        let _ = writeln!(text, "### {}\n\n{}", driver.name(), matrix(driver, ran));
    }
    let changed = PART.write(&text)?;
    println!("{} {}", PART.page, if changed { "is rewritten" } else { "was right" });
    Ok(())
}

/// A row per program, service and fault, a column per place: passed of run, or the number that all passed.
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
    use super::super::cases;
    use super::*;
    use std::time::Duration;

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
