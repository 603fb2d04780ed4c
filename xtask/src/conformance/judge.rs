//! What a program's output must have, beside exit status 0.

use super::cases::Output;

/// Words that programs complain with, in lower case.
const COMPLAINTS: [&str; 11] = [
    "couldn't",
    "could not",
    "failed",
    "failure",
    "unable to",
    "error",
    "invalid",
    "problem",
    "mismatch",
    "not support",
    "unexpected",
];

/// Judges the output of the server and of the client; of one process, that is the client.
pub(crate) fn judge(expected: &Output, server: &str, client: &str) -> Result<(), String> {
    for (side, text) in [("server", server), ("client", client)] {
        // Lists of what a device has say what it has not, too.
        if matches!(expected, Output::Listing(_)) {
            break;
        }
        if let Some(line) = text.lines().find(|line| complains(line)) {
            return Err(format!("the {side} says: {}", line.trim()));
        }
    }
    match expected {
        Output::Listing(words) => match words.iter().find(|word| !client.contains(**word)) {
            Some(word) => Err(format!("`{word}` is not in the output")),
            None => Ok(()),
        },
        Output::PingPong { bytes: None } => Ok(()),
        Output::PingPong { bytes: Some(bytes) } => {
            let line = format!("{bytes} bytes in ");
            let silent = [("server", server), ("client", client)];
            match silent.iter().find(|(_, text)| !text.contains(&line)) {
                Some((side, _)) => Err(format!("the {side} does not say `{line}...`")),
                None => Ok(()),
            }
        }
        Output::Table { sizes, iterations } => table(sizes, *iterations, client),
        Output::Said { server: of_server, client: of_client } => {
            said("server", of_server, server)?;
            said("client", of_client, client)
        }
    }
}

/// Every word, each in the text of one side.
fn said(side: &str, words: &[&str], text: &str) -> Result<(), String> {
    match words.iter().find(|word| !text.contains(**word)) {
        Some(word) => Err(format!("the {side} does not say `{word}`")),
        None => Ok(()),
    }
}

/// Whether a ping-pong that lost packets ended as it may: one side moved everything, had its last
/// acknowledgement, and ended; the acknowledgement that it sent for the other's last message was
/// lost, and nobody is there any more to repeat it. The bytes arrived all the same.
pub(crate) fn ended_by_loss(expected: &Output, server: &str, client: &str) -> bool {
    let Output::PingPong { bytes: Some(bytes) } = expected else { return false };
    let ended = |text: &str| text.contains(&format!("{bytes} bytes in "));
    let waits = |text: &str| text.contains("Failed status transport retry counter exceeded");
    (ended(server) && waits(client)) || (waits(server) && ended(client))
}

/// Whether a line complains; where Vernic's log says what to read, that part of it does not.
fn complains(line: &str) -> bool {
    let line = line.split_once(MORE).map_or(line, |(line, _)| line).to_lowercase();
    COMPLAINTS.iter().any(|word| line.contains(word))
}

/// How the end of a line of Vernic's log begins that names the section to read.
const MORE: &str = "(more: vernic errors ";

/// What perftest says when it could not measure the processor's clock, as on a busy machine: the
/// times in its table are then infinite, or no numbers.
const NO_CLOCK: &str = "Correlation coefficient";

/// Where tables of latencies have the standard deviation, which perftest says is no number where
/// single times are 100 ms, as on a busy machine; tables of bandwidths are shorter.
const STDEV: usize = 4;

/// A row for each size, with the iterations asked for, and measurements above zero.
fn table(sizes: &[u64], iterations: Option<u64>, text: &str) -> Result<(), String> {
    let rows: Vec<(u64, u64, Vec<f64>)> = text.lines().filter_map(row).collect();
    let found: Vec<u64> = rows.iter().map(|row| row.0).collect();
    if found != sizes {
        return Err(format!("the table has rows for {found:?} bytes, expected {sizes:?}"));
    }
    for (size, count, figures) in &rows {
        if iterations.is_some_and(|expected| expected != *count) || *count == 0 {
            return Err(format!("{size} bytes: {count} iterations, expected {iterations:?}"));
        }
        let is_figure = |(at, figure): (usize, &f64)| {
            (figure.is_finite() && *figure >= 0.0) || (at == STDEV && figure.is_nan())
        };
        let measured =
            figures.iter().enumerate().all(is_figure) && figures.iter().any(|figure| *figure > 0.0);
        if !measured && !text.contains(NO_CLOCK) {
            return Err(format!("{size} bytes: no figure above 0"));
        }
    }
    Ok(())
}

/// Size, iterations and figures: a line of numbers alone, at least three of them.
fn row(line: &str) -> Option<(u64, u64, Vec<f64>)> {
    let mut words = line.split_whitespace();
    let size = words.next()?.parse().ok()?;
    let count = words.next()?.parse().ok()?;
    let figures: Result<Vec<f64>, _> = words.map(str::parse).collect();
    let figures = figures.ok()?;
    (!figures.is_empty()).then_some((size, count, figures))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str =
        " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 2          100              5.83               5.57   \t\t   2.922312
 4          100              11.7               11.2   \t\t   2.9
---------------------------------------------------------------------------------------
";

    fn expected(sizes: &[u64]) -> Output {
        Output::Table { sizes: sizes.to_vec(), iterations: Some(100) }
    }

    #[test]
    fn a_table_has_the_rows_that_were_asked_for() {
        judge(&expected(&[2, 4]), "", TABLE).unwrap();
        assert!(judge(&expected(&[2, 4, 8]), "", TABLE).is_err());
        assert!(judge(&expected(&[2]), "", TABLE).is_err());
        assert!(judge(&expected(&[2, 4]), "", &TABLE.replace("100  ", "99  ")).is_err());
        assert!(judge(&expected(&[2]), "", "2 100 0.00 0.00 0.00\n").is_err());
        let unmeasured = "2 100 -nan inf 0.00\n";
        assert!(judge(&expected(&[2]), "", unmeasured).is_err());
        let spread = "2 100 5.90 100001.11 10.86 2541.18 -nan 67308.33 100001.11\n";
        judge(&expected(&[2]), "", spread).unwrap();
        assert!(judge(&expected(&[2]), "", &spread.replace("2541.18", "-nan")).is_err());
        let busy = format!("Correlation coefficient r^2: 0.89 < 0.9\n{unmeasured}");
        judge(&expected(&[2]), "", &busy).unwrap();
    }

    #[test]
    fn a_complaint_of_either_side_is_a_failure_whatever_the_table_says() {
        let why = judge(&expected(&[2, 4]), "Couldn't create QP\n", TABLE).unwrap_err();
        assert!(why.contains("server") && why.contains("create QP"), "{why}");
    }

    #[test]
    fn a_section_to_read_is_no_complaint_by_itself() {
        let drops = "vernic[7] warn: packets are dropped: their ICRC is wrong";
        let more = format!("{drops} drops=1 (more: vernic errors DROPPED_PACKETS)\n");
        judge(&expected(&[2, 4]), &more, TABLE).unwrap();
        let failed = more.replace("packets are dropped", "queue pair failed");
        assert!(judge(&expected(&[2, 4]), &failed, TABLE).unwrap_err().contains("server"));
    }

    #[test]
    fn a_lost_last_acknowledgement_is_no_failure_if_the_other_side_ended_well() {
        let output = Output::PingPong { bytes: Some(2000) };
        let ended = "2000 bytes in 0.01 seconds = 4000.00 Mbit/sec\n";
        let waits = "Failed status transport retry counter exceeded (12) for wr_id 2\n";
        assert!(ended_by_loss(&output, waits, ended) && ended_by_loss(&output, ended, waits));
        assert!(!ended_by_loss(&output, waits, waits) && !ended_by_loss(&output, waits, ""));
    }

    #[test]
    fn each_side_says_what_it_has_to() {
        let output = Output::Said { server: &["accepted"], client: &["connected", "complete"] };
        judge(&output, "accepted\n", "connected\ntest complete\n").unwrap();
        let why = judge(&output, "accepted\n", "connected\n").unwrap_err();
        assert!(why.contains("client") && why.contains("complete"), "{why}");
        assert!(judge(&output, "", "connected, complete").unwrap_err().contains("server"));
        assert!(judge(&output, "accepted\nerror 5\n", "connected, complete").is_err());
    }

    #[test]
    fn both_sides_of_a_ping_pong_say_what_they_moved() {
        let output = Output::PingPong { bytes: Some(8_192_000) };
        let good = "8192000 bytes in 0.01 seconds = 4000.00 Mbit/sec\n";
        judge(&output, good, good).unwrap();
        assert!(judge(&output, "", good).unwrap_err().contains("server"));
        assert!(judge(&output, good, "").unwrap_err().contains("client"));
    }
}
