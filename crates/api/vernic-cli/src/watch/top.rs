//! The state of `vernic top`: what was told last, and what the person at the keys wants to see.

use std::cmp::Ordering;

use super::sample::{ProcessRow, QpRow, View};
use super::text::{bytes, count, peer, rnr};

/// A column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Pid,
    Program,
    Device,
    Qp,
    Type,
    State,
    Peer,
    Way,
    Outstanding,
    InFlight,
    Window,
    RoundTrip,
    Requests,
    Sent,
    Received,
    Resent,
    Rnr,
}

/// How wide a column is, and its heading.
pub(super) struct Heading {
    pub(super) text: &'static str,
    pub(super) width: u16,
    pub(super) is_number: bool,
}

impl Column {
    /// All of them, from left to right.
    pub(super) const ALL: [Self; 17] = [
        Self::Pid,
        Self::Program,
        Self::Device,
        Self::Qp,
        Self::Type,
        Self::State,
        Self::Peer,
        Self::Way,
        Self::Requests,
        Self::Sent,
        Self::Received,
        Self::Outstanding,
        Self::InFlight,
        Self::Window,
        Self::RoundTrip,
        Self::Resent,
        Self::Rnr,
    ];

    pub(super) fn heading(self) -> Heading {
        let (text, width, is_number) = match self {
            Self::Pid => ("PID", 7, true),
            Self::Program => ("PROGRAM", 14, false),
            Self::Device => ("DEVICE", 9, false),
            Self::Qp => ("QP", 8, true),
            Self::Type => ("TYPE", 4, false),
            Self::State => ("STATE", 5, false),
            Self::Peer => ("PEER", 24, false),
            Self::Way => ("WAY", 6, false),
            Self::Outstanding => ("POSTED", 6, true),
            Self::InFlight => ("FLIGHT", 6, true),
            Self::Window => ("WINDOW", 6, true),
            Self::RoundTrip => ("RTT us", 8, true),
            Self::Requests => ("REQ/s", 8, true),
            Self::Sent => ("SENT/s", 9, true),
            Self::Received => ("RECV/s", 9, true),
            Self::Resent => ("RESENT", 7, true),
            Self::Rnr => ("RNR", 6, true),
        };
        Heading { text, width, is_number }
    }

    /// What stands in a row.
    pub(super) fn cell(self, Row { process, qp }: Row<'_>) -> String {
        let rate = |of: fn(Row<'_>) -> Option<f64>, show: fn(f64) -> String| {
            of(Row { process, qp }).map_or_else(|| "-".into(), show)
        };
        let known = |value: Option<u64>| value.map_or_else(|| "-".into(), |v| v.to_string());
        match self {
            Self::Pid => process.pid.to_string(),
            Self::Program => program(&process.command),
            Self::Device => process.device.clone(),
            Self::Qp => format!("{:#x}", qp.number),
            Self::Type => qp.kind.chars().take(4).collect(),
            Self::State => qp.state.into(),
            Self::Peer => peer(qp),
            Self::Way => qp.way.clone(),
            Self::Outstanding => qp.outstanding.to_string(),
            Self::InFlight => qp.in_flight_packets.to_string(),
            Self::Window => known(qp.window_packets),
            Self::RoundTrip => qp.round_trip_us.map_or_else(|| "-".into(), |us| format!("{us:.0}")),
            Self::Requests => rate(|row| Some(row.qp.rates?.completed), count),
            Self::Sent => rate(|row| Some(row.qp.rates?.sent_bytes), bytes),
            Self::Received => rate(|row| Some(row.qp.rates?.received_bytes), bytes),
            Self::Resent => qp.counter("retransmitted_packets").to_string(),
            Self::Rnr => rnr(qp).to_string(),
        }
    }

    /// The order of two rows: words by the alphabet, numbers with the largest first.
    fn order(self, a: Row<'_>, b: Row<'_>) -> Ordering {
        let by = |of: fn(&QpRow) -> f64| of(b.qp).total_cmp(&of(a.qp));
        let words = || self.cell(a).cmp(&self.cell(b));
        match self {
            Self::Pid => a.process.pid.cmp(&b.process.pid),
            Self::Qp => a.qp.number.cmp(&b.qp.number),
            Self::Program | Self::Device | Self::Type | Self::State | Self::Peer | Self::Way => {
                words()
            }
            Self::Outstanding => by(|qp| qp.outstanding as f64),
            Self::InFlight => by(|qp| qp.in_flight_packets as f64),
            Self::Window => by(|qp| qp.window_packets.unwrap_or(0) as f64),
            Self::RoundTrip => by(|qp| qp.round_trip_us.unwrap_or(0.0)),
            Self::Requests => by(|qp| qp.rates.map_or(0.0, |rates| rates.completed)),
            Self::Sent => by(|qp| qp.rates.map_or(0.0, |rates| rates.sent_bytes)),
            Self::Received => by(|qp| qp.rates.map_or(0.0, |rates| rates.received_bytes)),
            Self::Resent => by(|qp| qp.counter("retransmitted_packets") as f64),
            Self::Rnr => by(|qp| rnr(qp) as f64),
        }
    }
}

/// The file name of a command line's program.
fn program(command: &str) -> String {
    let path = command.split(' ').next().unwrap_or_default();
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

/// A queue pair and the process that has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    pub(super) process: &'a ProcessRow,
    pub(super) qp: &'a QpRow,
}

/// Which queue pair: process, device, number.
type Place = (u32, String, u32);

impl Row<'_> {
    fn place(self) -> Place {
        (self.process.pid, self.process.device.clone(), self.qp.number)
    }

    /// Whether a word is in any cell.
    fn has(self, word: &str) -> bool {
        let has = |text: &str| text.to_lowercase().contains(word);
        has(&self.process.command) || Column::ALL.iter().any(|column| has(&column.cell(self)))
    }
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
    NextColumn,
    LastColumn,
    Reverse,
    Open,
    Back,
    Pause,
    Type,
    Letter(char),
    Erase,
    Help,
    Quit,
}

/// What a letter asks for where no word is typed.
fn command(letter: char) -> Option<Wish> {
    Some(match letter {
        'q' => Wish::Quit,
        'k' => Wish::Up,
        'j' => Wish::Down,
        '<' => Wish::LastColumn,
        '>' => Wish::NextColumn,
        'r' => Wish::Reverse,
        'p' | ' ' => Wish::Pause,
        '/' => Wish::Type,
        '?' | 'h' => Wish::Help,
        _ => return None,
    })
}

/// What is on the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Page {
    /// The table of queue pairs.
    #[default]
    Table,
    /// One of them.
    Detail,
    /// The keys.
    Help,
}

/// Rows that a page key moves.
const PAGE_ROWS: isize = 20;

/// The state of `vernic top`.
#[derive(Debug)]
pub(super) struct App {
    view: View,
    pub(super) order: Column,
    pub(super) is_reversed: bool,
    pub(super) filter: String,
    /// Letters go into the filter.
    pub(super) is_typing: bool,
    pub(super) is_paused: bool,
    pub(super) page: Page,
    selected: Option<Place>,
}

impl App {
    pub(super) fn new() -> Self {
        Self {
            view: View::default(),
            order: Column::Requests,
            is_reversed: false,
            filter: String::new(),
            is_typing: false,
            is_paused: false,
            page: Page::Table,
            selected: None,
        }
    }

    pub(super) fn view(&self) -> &View {
        &self.view
    }

    /// Takes what was told now, unless the screen is to stand still.
    pub(super) fn tell(&mut self, view: View) {
        if !self.is_paused {
            self.view = view;
        }
    }

    /// The rows that the filter leaves, in order.
    pub(super) fn rows(&self) -> Vec<Row<'_>> {
        let word = self.filter.to_lowercase();
        let all = self
            .view
            .processes
            .iter()
            .flat_map(|process| process.qps.iter().map(move |qp| Row { process, qp }));
        let mut rows: Vec<_> = all.filter(|row| word.is_empty() || row.has(&word)).collect();
        // Rows that are equal keep the order of processes and numbers.
        rows.sort_by(|a, b| match self.is_reversed {
            false => self.order.order(*a, *b),
            true => self.order.order(*b, *a),
        });
        rows
    }

    /// The place of the selected queue pair among the rows; the first if it is no longer there.
    pub(super) fn selected(&self, rows: &[Row<'_>]) -> Option<usize> {
        let found = rows.iter().position(|row| Some(row.place()) == self.selected);
        found.or((!rows.is_empty()).then_some(0))
    }

    /// The queue pair whose page is shown; `None` if it has ended.
    pub(super) fn opened(&self) -> Option<Row<'_>> {
        let rows = self
            .view
            .processes
            .iter()
            .flat_map(|process| process.qps.iter().map(move |qp| Row { process, qp }));
        rows.into_iter().find(|row| Some(row.place()) == self.selected)
    }

    /// Does what a key asks for. `false` ends the command.
    pub(super) fn obey(&mut self, wish: Wish) -> bool {
        let wish = match wish {
            Wish::Letter(letter) if !self.is_typing => match command(letter) {
                Some(wish) => wish,
                None => return true,
            },
            wish => wish,
        };
        match (wish, self.page) {
            (Wish::Quit, _) => return false,
            (Wish::Letter(letter), _) => self.filter.push(letter),
            (Wish::Erase, _) if self.is_typing => drop(self.filter.pop()),
            (Wish::Open | Wish::Back, _) if self.is_typing => {
                self.is_typing = false;
                if wish == Wish::Back {
                    self.filter.clear();
                }
            }
            (Wish::Back, Page::Table) => self.filter.clear(),
            (Wish::Back | Wish::Help, Page::Detail | Page::Help) => self.page = Page::Table,
            (Wish::Help, Page::Table) => self.page = Page::Help,
            (Wish::Pause, _) => self.is_paused = !self.is_paused,
            (Wish::Type, Page::Table) => self.is_typing = true,
            (Wish::Open, Page::Table) => self.open(),
            (Wish::Reverse, Page::Table) => self.is_reversed = !self.is_reversed,
            (Wish::NextColumn, Page::Table) => self.turn(1),
            (Wish::LastColumn, Page::Table) => self.turn(Column::ALL.len() - 1),
            (Wish::Up, _) => self.step(-1),
            (Wish::Down, _) => self.step(1),
            (Wish::PageUp, _) => self.step(-PAGE_ROWS),
            (Wish::PageDown, _) => self.step(PAGE_ROWS),
            (Wish::First, _) => self.step(isize::MIN),
            (Wish::Last, _) => self.step(isize::MAX),
            _ => {}
        }
        true
    }

    fn open(&mut self) {
        self.step(0);
        if self.opened().is_some() {
            self.page = Page::Detail;
        }
    }

    fn turn(&mut self, columns: usize) {
        let at = Column::ALL.iter().position(|column| *column == self.order).unwrap_or(0);
        self.order = Column::ALL[(at + columns) % Column::ALL.len()];
    }

    fn step(&mut self, rows_down: isize) {
        let rows = self.rows();
        let at = self.selected(&rows).unwrap_or(0);
        let to = at.saturating_add_signed(rows_down).min(rows.len().saturating_sub(1));
        let place = rows.get(to).map(|row| row.place());
        self.selected = place;
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::{process, sample};
    use super::*;

    fn app() -> App {
        let before = sample(0, vec![process(1, 0, 0), process(2, 0, 0), process(3, 0, 0)]);
        let told = vec![process(1, 10, 500), process(2, 30, 100), process(3, 20, 900)];
        let mut app = App::new();
        app.tell(sample(1, told).view(Some(&before)));
        app
    }

    fn pids(app: &App) -> Vec<u32> {
        app.rows().iter().map(|row| row.process.pid).collect()
    }

    #[test]
    fn rows_are_in_the_order_of_any_column_and_its_reverse() {
        let mut app = app();
        assert_eq!(pids(&app), [2, 3, 1], "most requests first");
        app.obey(Wish::NextColumn);
        assert_eq!((app.order, pids(&app)), (Column::Sent, vec![3, 1, 2]));
        app.obey(Wish::Reverse);
        assert_eq!(pids(&app), [2, 1, 3]);
        for _ in 0..Column::ALL.len() {
            app.obey(Wish::LastColumn);
            assert_eq!(app.rows().len(), 3, "{:?}", app.order);
        }
        assert_eq!(app.order, Column::Sent, "once around");
    }

    #[test]
    fn a_word_that_is_typed_leaves_the_rows_that_have_it() {
        let mut app = app();
        assert!(app.obey(Wish::Letter('/')) && app.is_typing);
        for letter in "0X66q".chars() {
            app.obey(Wish::Letter(letter));
        }
        app.obey(Wish::Erase);
        assert_eq!(pids(&app), [2], "its queue pair is 0x66");
        app.obey(Wish::Open);
        assert_eq!((app.is_typing, app.page), (false, Page::Table), "the word is taken");
        app.obey(Wish::Back);
        assert_eq!(pids(&app).len(), 3);
    }

    #[test]
    fn the_selection_stays_with_its_queue_pair_and_opens_it() {
        let mut app = app();
        app.obey(Wish::Down);
        let selected = |app: &App| app.selected(&app.rows()).map(|at| pids(app)[at]);
        assert_eq!(selected(&app), Some(3));
        app.obey(Wish::Reverse);
        assert_eq!(selected(&app), Some(3));
        for (wish, expected) in
            [(Wish::First, 1), (Wish::Up, 1), (Wish::PageDown, 2), (Wish::Last, 2), (Wish::Up, 3)]
        {
            app.obey(wish);
            assert_eq!(selected(&app), Some(expected), "{wish:?}");
        }
        app.obey(Wish::Open);
        assert_eq!((app.page, app.opened().map(|row| row.process.pid)), (Page::Detail, Some(3)));
        app.tell(sample(2, vec![process(1, 0, 0)]).view(None));
        assert!(app.opened().is_none(), "it has ended");
        app.obey(Wish::Back);
        assert_eq!((app.page, selected(&app)), (Page::Table, Some(1)));
        assert!(!app.obey(Wish::Quit));
    }

    #[test]
    fn nothing_to_show_is_no_harm_and_a_pause_keeps_what_there_is() {
        let mut app = App::new();
        for wish in [Wish::Down, Wish::Last, Wish::Open, Wish::PageUp, Wish::Back, Wish::Erase] {
            assert!(app.obey(wish));
        }
        assert_eq!((app.page, app.selected(&[])), (Page::Table, None));
        app.obey(Wish::Pause);
        app.tell(sample(1, vec![process(1, 0, 0)]).view(None));
        assert!(app.rows().is_empty());
        app.obey(Wish::Pause);
        app.tell(sample(1, vec![process(1, 0, 0)]).view(None));
        assert_eq!(app.rows().len(), 1);
    }
}
