//! How `vernic top` is drawn, and its keys.

use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row as Cells, Table, TableState, Wrap};

use super::sample::{Filter, Sample};
use super::text::{bytes, count, drops, peer};
use super::top::{App, Column, Page, Row, Wish};
use crate::failure::{Doing, Outcome};

const KEYS: &str = "q quit  Enter look into  / filter  < > order by  r reverse  p pause  ? keys";

const HELP: &str = "\
Up Down k j, PageUp PageDown, Home End   select a queue pair
Enter                                    look into it; Esc goes back
< >, Left Right                          order by another column; r reverses
/                                        leave only rows with a word; Esc shows all
p, space                                 stand still, go on
q, Ctrl-C                                quit

POSTED  send requests that are not completed     FLIGHT  packets without an answer yet
WINDOW  packets that may be in flight            RTT     smoothed round trip of packets
REQ/s   send requests completed in a second      WAY     memory, link (UDP), tcp (iWARP), fabric
SENT/s  bytes of packets; what goes from memory to memory has none, and counts under `by memory`
RESENT  packets sent again                       RNR     NAKs since no receive was posted";

/// Runs until the person at the keys has enough.
pub(super) fn run(interval: Duration, filter: &Filter) -> Outcome<()> {
    let mut before = Sample::take(filter)?;
    let mut app = App::new();
    app.tell(before.view(None));
    let mut terminal = ratatui::try_init().doing(|| "use the terminal".into())?;
    let mut due = Instant::now() + interval.min(Duration::from_millis(300));
    let ended = loop {
        let drawn = terminal.draw(|frame| draw(frame, &app)).map(|_| ());
        if let Err(why) = drawn.doing(|| "draw".into()) {
            break Err(why);
        }
        match wishes(due) {
            Ok(wish) if wish.is_some_and(|wish| !app.obey(wish)) => break Ok(()),
            Ok(_) => {}
            Err(why) => break Err(why),
        }
        if Instant::now() >= due {
            match Sample::take(filter) {
                Ok(now) => {
                    app.tell(now.view(Some(&before)));
                    before = now;
                }
                Err(why) => break Err(why),
            }
            due = Instant::now() + interval;
        }
    };
    ratatui::restore();
    ended
}

/// Waits for a key until then.
fn wishes(due: Instant) -> Outcome<Option<Wish>> {
    let left = due.saturating_duration_since(Instant::now());
    if !event::poll(left).doing(|| "wait for a key".into())? {
        return Ok(None);
    }
    let event = event::read().doing(|| "read a key".into())?;
    let Event::Key(key) = event else { return Ok(None) };
    Ok((key.kind != KeyEventKind::Release).then(|| wish(key)).flatten())
}

/// What a key means. Letters are letters while a word is typed: the state knows.
fn wish(KeyEvent { code, modifiers, .. }: KeyEvent) -> Option<Wish> {
    Some(match code {
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Wish::Quit,
        KeyCode::Up => Wish::Up,
        KeyCode::Down => Wish::Down,
        KeyCode::PageUp => Wish::PageUp,
        KeyCode::PageDown => Wish::PageDown,
        KeyCode::Home => Wish::First,
        KeyCode::End => Wish::Last,
        KeyCode::Left => Wish::LastColumn,
        KeyCode::Right => Wish::NextColumn,
        KeyCode::Enter => Wish::Open,
        KeyCode::Esc => Wish::Back,
        KeyCode::Backspace => Wish::Erase,
        KeyCode::Char(letter) => Wish::Letter(letter),
        _ => return None,
    })
}

fn draw(frame: &mut Frame<'_>, app: &App) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(2), Constraint::Min(0), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(Paragraph::new(heading(app)), head);
    match app.page {
        Page::Table => table(frame, app, body),
        Page::Detail => {
            let text = app.opened().map_or_else(|| "This queue pair is gone.".into(), detail);
            frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), body);
        }
        Page::Help => frame.render_widget(Paragraph::new(HELP), body),
    }
    let foot_text = match app.is_typing {
        true => format!("rows with: {}_   (Enter takes it, Esc shows all)", app.filter),
        false if app.filter.is_empty() => KEYS.into(),
        false => format!("rows with: {}   (Esc shows all)  {KEYS}", app.filter),
    };
    let style = Style::new().add_modifier(Modifier::REVERSED);
    frame.render_widget(Paragraph::new(foot_text).style(style), foot);
}

fn heading(app: &App) -> Text<'static> {
    let view = app.view();
    let total = |of: fn(&Row<'_>) -> f64| app.rows().iter().map(of).fold(0.0, |sum, one| sum + one);
    let mut memory = 0.0;
    let mut sent = 0.0;
    for rates in view.processes.iter().filter_map(|process| process.rates) {
        memory += rates.memory_bytes;
        sent += rates.sent_bytes;
    }
    let qps: u64 = view.processes.iter().map(|process| process.queue_pairs).sum();
    let first = format!(
        "vernic top: {} processes with a device, {qps} queue pairs{}{}",
        view.processes.len(),
        match view.silent_processes {
            0 => String::new(),
            silent => format!(", {silent} silent (stopped?)"),
        },
        if app.is_paused { "   PAUSED" } else { "" }
    );
    let second = format!(
        "requests {}/s   sent {}/s   by memory {}/s",
        count(total(|row| row.qp.rates.map_or(0.0, |rates| rates.completed))),
        bytes(sent),
        bytes(memory)
    );
    Text::from(vec![Line::from(first), Line::from(second)])
}

fn table(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let rows = app.rows();
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let header = Column::ALL.map(|column| {
        let heading = column.heading();
        let mark = match (column == app.order, app.is_reversed) {
            (false, _) => "",
            (true, false) => "*",
            (true, true) => "^",
        };
        aligned(format!("{}{mark}", heading.text), heading.is_number).style(bold)
    });
    let selected = app.selected(&rows);
    // Only what fits on the screen is made into text: there may be thousands of rows.
    let height = usize::from(area.height.saturating_sub(1)).max(1);
    let first = selected.map_or(0, |at| (at + 1).saturating_sub(height));
    let shown = rows.iter().skip(first).take(height).map(|row| {
        Cells::new(Column::ALL.map(|column| aligned(column.cell(*row), column.heading().is_number)))
    });
    let widths = Column::ALL.map(|column| Constraint::Length(column.heading().width));
    let table = Table::new(shown, widths)
        .header(Cells::new(header))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected(selected.map(|at| at - first));
    frame.render_stateful_widget(table, area, &mut state);
    if rows.is_empty() {
        let text = match app.filter.is_empty() {
            true => {
                "No queue pair. A program appears here as soon as it runs under `vernic run`, in this network namespace."
            }
            false => "No row has that in it.",
        };
        let below = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), below);
    }
}

fn aligned(text: String, is_number: bool) -> Cell<'static> {
    let alignment = if is_number { Alignment::Right } else { Alignment::Left };
    Cell::from(Text::from(text).alignment(alignment))
}

/// All that is known of a queue pair.
fn detail(Row { process, qp }: Row<'_>) -> String {
    let mut lines = vec![
        format!("queue pair {:#x} of process {}: {}", qp.number, process.pid, process.command),
        format!("{} on {}, {}, peer {}", qp.kind, process.device, qp.state, peer(qp)),
        format!("way: {}", qp.route),
        format!(
            "{} send requests completed, {} outstanding, {} packets in flight{}{}",
            qp.completed,
            qp.outstanding,
            qp.in_flight_packets,
            qp.window_packets.map_or_else(String::new, |most| format!(" of {most} allowed")),
            qp.round_trip_us.map_or_else(String::new, |us| format!(", round trip {us:.1} us")),
        ),
    ];
    if let Some(rates) = qp.rates {
        lines.push(format!(
            "a second: {} requests, {} messages received, {} sent, {} received, {} packets sent again",
            count(rates.completed),
            count(rates.received_messages),
            bytes(rates.sent_bytes),
            bytes(rates.received_bytes),
            count(rates.retransmitted_packets)
        ));
    }
    if let Some(failure) = &qp.failure {
        lines.push(format!("failed: {failure}"));
    }
    lines.push(String::new());
    lines.push("counters of the queue pair since its reset; those not listed are 0".into());
    lines.extend(qp.counters.iter().map(|c| format!("  {:<28} {}", c.name, c.value)));
    let dropped: Vec<_> =
        drops(process).map(|(name, value)| format!("  {name:<28} {value}")).collect();
    if !dropped.is_empty() {
        lines.push("packets that the process dropped, by reason".into());
        lines.extend(dropped);
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::sample::tests::{process, sample};
    use super::*;

    fn screen(app: &App, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, app)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(|y| line(y).trim_end().to_owned() + "\n").collect()
    }

    fn app(processes: u32) -> App {
        let mut app = App::new();
        let told =
            |per: u64| (1..=processes).map(|pid| process(pid, per * u64::from(pid), per)).collect();
        app.tell(sample(1, told(1000)).view(Some(&sample(0, told(0)))));
        app
    }

    #[test]
    fn the_table_has_a_heading_a_row_for_each_queue_pair_and_the_keys() {
        let text = screen(&app(2), 160, 8);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "vernic top: 2 processes with a device, 2 queue pairs");
        assert_eq!(lines[1], "requests 3.00 k/s   sent 2.00 kB/s   by memory 10.0 kB/s");
        assert!(lines[2].contains("PID PROGRAM") && lines[2].contains("REQ/s*"), "{text}");
        assert!(
            lines[3].contains("0x66 RC   RTS   10.0.0.2 0x7") && lines[3].contains("2.00 k"),
            "{text}"
        );
        assert!(lines[4].contains("0x65 RC"), "{text}");
        assert!(lines[7].starts_with("q quit"), "{text}");
    }

    #[test]
    fn rows_beyond_the_screen_are_reached_and_any_size_is_drawn() {
        let mut app = app(100);
        app.obey(Wish::Last);
        let text = screen(&app, 120, 10);
        assert!(text.contains("0x65 ") && !text.contains("0xc8 "), "{text}");
        for (width, height) in [(1, 1), (20, 3), (300, 2), (80, 24)] {
            screen(&app, width, height);
        }
    }

    #[test]
    fn a_queue_pair_is_looked_into_and_one_that_is_gone_says_so() {
        let mut app = app(1);
        app.obey(Wish::Open);
        let text = screen(&app, 120, 20);
        for part in [
            "queue pair 0x65 of process 1: ",
            "RC on vernic0, RTS, peer 10.0.0.2 0x7",
            "way: wire: the peer is no process of this host",
            "1000 send requests completed, 3 outstanding, 0 packets in flight of 64 allowed, round trip 30.0 us",
            "  tx_bytes                     1000",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
        app.tell(sample(2, Vec::new()).view(None));
        assert!(screen(&app, 120, 20).contains("This queue pair is gone."));
        app.obey(Wish::Back);
        assert!(screen(&app, 120, 20).contains("No queue pair. A program appears here"));
    }

    #[test]
    fn keys_have_the_meanings_that_help_lists() {
        let press = |code| wish(KeyEvent::new(code, KeyModifiers::NONE));
        assert_eq!(press(KeyCode::Enter), Some(Wish::Open));
        assert_eq!(press(KeyCode::Char('q')), Some(Wish::Letter('q')));
        assert_eq!(press(KeyCode::F(1)), None);
        let quit = wish(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert_eq!(quit, Some(Wish::Quit));
        let mut app = app(1);
        app.obey(Wish::Letter('?'));
        assert!(screen(&app, 120, 20).contains("send requests that are not completed"));
    }
}
