//! What both sides of a case must have printed, beside exit status 0.

use super::case::{Case, Expected, Fault};
use crate::Result;
use crate::conformance;

/// Packets with a wrong ICRC that the guest sends in a case of such.
pub(super) const FORGED: u32 = 5;

/// Judges how the processes ended, and what they printed.
pub(super) fn judge(case: &Case, ended: Result, server: &str, client: &str) -> Result {
    match &case.expected {
        Expected::Output(output) => {
            let lossy = case.fault != Fault::None;
            if lossy && conformance::ended_by_loss(output, server, client) {
                return Ok(());
            }
            // perftest's deviation is the root of what may be below zero where clocks are coarse.
            let [server, client] = [server, client].map(|text| text.replace("-nan", "0.00"));
            let is_siw = case.place.is_iwarp() && !case.place.to_kernel;
            if let (true, Some(client)) = (is_siw, but_for_last_word(&client)) {
                return conformance::judge(output, &server, &client);
            }
            ended.and_then(|()| conformance::judge(output, &server, &client))
        }
        Expected::Lines(expected) | Expected::Reset(expected) => {
            // What a program says of itself tells more than its exit status.
            let said =
                lines("server", expected[0], server).and(lines("client", expected[1], client));
            said.and(ended)
        }
        Expected::Forged(expected) => {
            let counted = format!("drop_icrc={FORGED}");
            if !server.split_whitespace().any(|word| word == counted) {
                return Err(format!("the server does not count {counted}"));
            }
            let plain = Expected::Lines(*expected);
            judge(&Case { expected: plain, ..case.clone() }, ended, server, client)
        }
        Expected::Killed { side, survivor } => {
            let text = [client, server][*side];
            ended.and_then(|()| {
                let says = text.lines().any(|line| line == *survivor);
                if says { Ok(()) } else { Err(format!("the survivor does not say `{survivor}`")) }
            })
        }
        Expected::Refused(line) => ended.and_then(|()| {
            let says = client.lines().any(|said| said == *line);
            if says { Ok(()) } else { Err(format!("the client does not say `{line}`")) }
        }),
        // The files were compared when they were there.
        Expected::Copied => ended,
    }
}

/// What perftest says on siw when its last message, which ends the connection, is called failed;
/// its programs disagree about the exit status, and about a space.
const LAST_WORD: &str = " Bad wc status 2
 Unable to write to socket/rdma_cm
Failed to close connection between server and client
";

/// The output of perftest on siw but for its last message: that was sent whole, and then siw found
/// that its peer had closed, which had received it, before it looked whether it was done. All that
/// is measured was measured.
fn but_for_last_word(client: &str) -> Option<String> {
    let client = client.replace("\n Failed to close", "\nFailed to close");
    client.contains(LAST_WORD).then(|| client.replace(LAST_WORD, "\n"))
}

/// Compares lines, without those of the library's own log.
fn lines(side: &str, expected: &str, text: &str) -> Result {
    let is_said = |line: &&str| !line.starts_with("vernic: ") && !line.starts_with("vernic[");
    let lines = |text: &str| {
        text.lines().filter(is_said).map(|line| line.trim().to_owned()).collect::<Vec<_>>()
    };
    if lines(expected) == lines(text) {
        return Ok(());
    }
    let one_line = |text: &str| lines(text).join("; ");
    Err(format!("the {side} says `{}`, expected `{}`", one_line(text), one_line(expected)))
}

#[cfg(test)]
mod tests {
    use super::super::case::Place;
    use super::super::cases;
    use super::super::links::Driver;
    use super::*;
    use crate::conformance::Output;

    fn case(expected: Expected) -> Case {
        Case { expected, ..cases::all().remove(0) }
    }

    #[test]
    fn each_side_must_say_its_lines_and_no_others() {
        let case = case(Expected::Lines(["a\nb", "c:"]));
        judge(&case, Ok(()), "a\nb\n", "c: \n").unwrap();
        assert!(judge(&case, Ok(()), "a\n", "c:\n").unwrap_err().contains("server"));
        assert!(judge(&case, Ok(()), "a\nb\n", "c:\nd\n").unwrap_err().contains("client"));
        assert!(judge(&case, Err("no".into()), "a\nb\n", "c:\n").is_err());
    }

    #[test]
    fn siw_may_call_a_last_message_failed_that_arrived() {
        let output = Output::Table { sizes: vec![2], iterations: Some(50) };
        let row = "2 50 88.70 4470.01 272.56 920.25 1072.76 4470.01 4470.01";
        let client = format!("{LAST_WORD}{row}\n");
        let failed = || Err("the client ended with exit status 1".into());
        let place = |driver, to_kernel| {
            let place = Place::of(driver).into_iter().find(|place| place.to_kernel == to_kernel);
            Case { place: place.unwrap(), ..case(Expected::Output(output.clone())) }
        };
        let from_siw = place(Driver::Siw, false);
        for ended in [Ok(()), failed()] {
            judge(&from_siw, ended.clone(), "", &client).unwrap();
            judge(&from_siw, ended.clone(), "", LAST_WORD).unwrap_err();
            judge(&place(Driver::Siw, true), ended.clone(), "", &client).unwrap_err();
            judge(&place(Driver::Rxe, false), ended, "", &client).unwrap_err();
        }
        // The table of bandwidths, with what is said to stderr at the end of its row.
        let of_bandwidth = format!("{row}{}{row}\n", LAST_WORD.replace("\nFailed", "\n Failed"));
        let twice = Output::Table { sizes: vec![2, 2], iterations: Some(50) };
        let of_two = Case { expected: Expected::Output(twice), ..from_siw.clone() };
        judge(&of_two, Ok(()), "", &of_bandwidth).unwrap();
        judge(&from_siw, failed(), "", row).unwrap_err();
    }

    #[test]
    fn forged_packets_must_all_be_counted() {
        let case = case(Expected::Forged(["a", "a"]));
        let log = "vernic[7] debug: device closed counters=rx_packets=9";
        judge(&case, Ok(()), &format!("a\n{log} drop_icrc={FORGED}\n"), "a\n").unwrap();
        assert!(judge(&case, Ok(()), &format!("a\n{log} drop_icrc=1{FORGED}\n"), "a\n").is_err());
        assert!(judge(&case, Ok(()), &format!("{log} drop_icrc={FORGED}\n"), "a\n").is_err());
    }

    #[test]
    fn the_survivor_says_what_it_saw() {
        let case = case(Expected::Killed { side: 0, survivor: "end" });
        judge(&case, Ok(()), "", "running\nend\n").unwrap();
        assert!(judge(&case, Ok(()), "end\n", "running\n").is_err());
        assert!(judge(&case, Err("time limit".into()), "", "end\n").is_err());
    }

    #[test]
    fn a_client_that_finds_nobody_says_so() {
        let case = case(Expected::Refused("nobody"));
        judge(&case, Ok(()), "", "where?\nnobody\n").unwrap();
        assert!(judge(&case, Ok(()), "nobody\n", "where?\n").is_err());
        assert!(judge(&case, Err("exit status 0".into()), "", "nobody\n").is_err());
    }
}
