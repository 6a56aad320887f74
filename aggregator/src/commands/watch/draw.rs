//! What is drawn on a terminal, of any size.

use super::paint::{Line, Paint};
use super::shown::{Cell, Lane, SILENCE_NS, Shown, Tone, millis, span, state_words};
use crate::live::view::View;

/// How to draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Block characters may be used.
    pub unicode: bool,
    /// Colours may be used.
    pub colour: bool,
}

impl Look {
    /// What the environment allows.
    pub fn of_environment(ascii: bool) -> Self {
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
            .iter()
            .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
            .unwrap_or_default()
            .to_ascii_uppercase();
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            unicode: !ascii && (locale.contains("UTF-8") || locale.contains("UTF8")),
            colour: !plain && std::env::var("TERM").is_ok_and(|term| term != "dumb"),
        }
    }
}

const fn of_tone(tone: Tone) -> Paint {
    match tone {
        Tone::Good => Paint::Good,
        Tone::Warning => Paint::Warning,
        Tone::Bad => Paint::Bad,
        Tone::Plain => Paint::Plain,
    }
}

const fn of_cell(cell: Cell) -> Paint {
    match cell {
        Cell::Blank => Paint::Plain,
        Cell::NoData => Paint::Nothing,
        Cell::Good => Paint::Good,
        Cell::Late | Cell::Mixed => Paint::Warning,
        Cell::Bad => Paint::Bad,
    }
}

/// Which part is looked at.
#[derive(Debug, Clone, Copy, Default)]
pub struct Place {
    first_lane: usize,
    /// The strips stand at this moment.
    paused: Option<i64>,
}

impl Place {
    /// Moves on by so many lanes.
    pub fn scroll(&mut self, by: i32) {
        let by = isize::try_from(by).unwrap_or(0);
        self.first_lane = self.first_lane.saturating_add_signed(by);
    }

    /// Lets the strips stand, or go on.
    pub fn pause(&mut self, shown: &Shown, silent_ns: u64) {
        self.paused = match self.paused {
            Some(_) => None,
            None => shown.view.as_ref().map(|view| now_of(view, silent_ns)),
        };
    }
}

fn now_of(view: &View, silent_ns: u64) -> i64 {
    match view.run_state.as_str() {
        "running" => view
            .now_ns
            .saturating_add(i64::try_from(silent_ns).unwrap_or(0)),
        _ => view.now_ns,
    }
}

/// Everything, in so many columns and rows at most; lines are cut when they are
/// drawn.
pub fn frame(
    shown: &Shown,
    place: &mut Place,
    look: Look,
    silent_ns: u64,
    (width, height): (usize, usize),
) -> Vec<Line> {
    let mut lines = head(shown, silent_ns, place.paused.is_some());
    if let Some(view) = &shown.view {
        let is_running = view.run_state == "running";
        let silent_ns = if is_running { silent_ns } else { 0 };
        let now = place.paused.unwrap_or_else(|| now_of(view, silent_ns));
        let agents = agents(view);
        // Lanes get what agents and a few events leave.
        let left = height.saturating_sub(lines.len() + agents.len() + 2);
        let most = (left.saturating_sub(left.min(5)) / 2).max(left / 4).max(1);
        place.first_lane = place.first_lane.min(shown.lanes.len().saturating_sub(most));
        let several = shown.has_several_agents();
        for lane in shown.lanes.iter().skip(place.first_lane).take(most) {
            lines.extend(of_lane(lane, view, now, several, look, silent_ns, width));
        }
        let hidden = shown.lanes.len().saturating_sub(most);
        if hidden > 0 {
            let text = format!("{hidden} more lanes: up and down move");
            lines.push(Line::of(text, Paint::Soft));
        }
        lines.extend(agents);
        let left = height.saturating_sub(lines.len() + 1);
        let skip = shown.events.len().saturating_sub(left);
        for event in shown.events.iter().skip(skip) {
            let paint = match event.kind.as_str() {
                "fault" | "outcome" | "loss" => Paint::Bad,
                "back" => Paint::Good,
                _ => Paint::Plain,
            };
            lines.push(
                Line::of(format!("{:9.3} s ", event.at_ns as f64 / 1e9), Paint::Soft)
                    .and(format!("{:<8}", event.kind.as_str()), paint)
                    .and(event.text.clone(), Paint::Plain),
            );
        }
    }
    lines.truncate(height.saturating_sub(1));
    lines.resize(height.saturating_sub(1), Line::default());
    if height > 0 {
        lines.push(Line::of(
            "q quits, p pauses, up and down move   provisional: no data is not health",
            Paint::Soft,
        ));
    }
    lines
}

fn head(shown: &Shown, silent_ns: u64, is_paused: bool) -> Vec<Line> {
    let Some(view) = &shown.view else {
        let text = shown.gone.as_ref().map_or_else(
            || "no run yet: start one with `gapscope-aggregator start`".to_owned(),
            |why| format!("? {why}; trying again"),
        );
        return vec![
            Line::of("gapscope watch", Paint::Bold),
            Line::of(text, Paint::Plain),
        ];
    };
    let title = Line::of(view.scenario.clone(), Paint::Bold).and(
        format!(
            "  {:.1} s of {:.0} s  {} samples stored{}  run {}",
            now_of(view, silent_ns) as f64 / 1e9,
            view.planned_ns as f64 / 1e9,
            view.samples,
            match view.lost {
                0 => String::new(),
                lost => format!(", up to {lost} LOST"),
            },
            view.run_id,
        ),
        Paint::Plain,
    );
    let (tone, mut text) = if let Some(why) = &shown.gone {
        (Tone::Warning, format!("? {why}; trying again"))
    } else if view.run_state != "running" {
        let text = format!("the run is {}: see its report", view.run_state);
        (Tone::Plain, text)
    } else if silent_ns > SILENCE_NS {
        let silent = span(silent_ns);
        let text = format!("? nothing was heard from the aggregator for {silent}");
        (Tone::Warning, text)
    } else if !view.trouble.is_empty() {
        let text = format!("X nothing is stored at present: {}", view.trouble);
        (Tone::Bad, text)
    } else {
        match view.newest_unix_ms {
            None => (Tone::Warning, "? no sample has been stored yet".to_owned()),
            Some(newest) => {
                let behind = (view.now_unix_ms - newest) as f64 / 1e3;
                let (tone, word) = match behind * 1e9 > SILENCE_NS as f64 {
                    true => (Tone::Warning, "? behind"),
                    false => (Tone::Good, "following"),
                };
                let text =
                    format!("{word}: the newest stored sample was {behind:.1} s old when told");
                (tone, text)
            }
        }
    };
    if shown.missed > 0 {
        text.push_str(&format!("; {} updates missed here", shown.missed));
    }
    if is_paused {
        text.push_str(" (paused)");
    }
    vec![title, Line::of(text, of_tone(tone))]
}

fn agents(view: &View) -> Vec<Line> {
    const MOST: usize = 4;
    let mut lines: Vec<Line> = view
        .agents
        .iter()
        .take(MOST)
        .map(|agent| {
            let (paint, state) = match agent.connected {
                true => (Paint::Plain, "connected"),
                false => (Paint::Bad, "AWAY"),
            };
            let clock = match agent.clock_bound_ns {
                None => "clock not known yet".to_owned(),
                Some(0) => "same clock".to_owned(),
                Some(bound) => format!("clock within {}", span(bound)),
            };
            let behind = agent.behind_ns.map_or("no sample yet".to_owned(), |ns| {
                format!("newest sample {} old", span(ns))
            });
            let spool = agent.spool_bytes / 1024;
            Line::of(format!("agent {} ", agent.agent), Paint::Plain)
                .and(state, paint)
                .and(
                    format!(", {clock}, {behind}, spool {spool} KiB"),
                    Paint::Soft,
                )
        })
        .collect();
    if view.agents.len() > MOST {
        let text = format!("and {} more agents", view.agents.len() - MOST);
        lines.push(Line::of(text, Paint::Plain));
    }
    lines
}

fn of_lane(
    lane: &Lane,
    view: &View,
    now: i64,
    several: bool,
    look: Look,
    silent_ns: u64,
    width: usize,
) -> [Line; 2] {
    let told = &lane.told;
    let (tone, state) = state_words(told, silent_ns);
    let backends: Vec<&str> = told
        .backends
        .iter()
        .filter_map(|at| view.backends.get(*at as usize).map(String::as_str))
        .collect();
    let on = match backends.is_empty() {
        true => "on nobody".to_owned(),
        false => format!("on {}", backends.join(", ")),
    };
    let mut first = Line::of(format!("{}  ", lane.name(several)), Paint::Bold)
        .and(state, of_tone(tone))
        .and(format!("  {on}"), Paint::Plain);
    if !told.last_error.is_empty() {
        first = first.and(format!("  newest error: {}", told.last_error), Paint::Soft);
    }
    let latency = |ns: Option<u64>| ns.map_or("-".to_owned(), millis);
    let numbers = format!(
        " {:.0}/s p50 {} p99 {} {} bad {} late",
        told.rate,
        latency(told.p50_ns),
        latency(told.p99_ns),
        told.bad,
        told.late,
    );
    let room = width.saturating_sub(numbers.chars().count());
    let mut second = Line::default();
    let strip = lane.strip(now, room.clamp(8, 120));
    for same in strip.chunk_by(|a, b| a == b) {
        let text: String = same.iter().map(|cell| cell.sign(look.unicode)).collect();
        second = second.and(text, of_cell(same[0]));
    }
    [first, second.and(numbers, Paint::Plain)]
}

#[cfg(test)]
mod tests {
    use ratatui::buffer::Buffer;
    use ratatui::layout::Rect;
    use ratatui::widgets::Widget;

    use super::super::paint::Lines;
    use super::super::shown::lane_of;
    use super::*;
    use crate::live::event::{Event, EventKind};
    use crate::live::lane::bit;
    use crate::live::view::{AgentView, Bin, State};

    const PLAIN: Look = Look {
        unicode: false,
        colour: false,
    };

    fn shown() -> Shown {
        let bin = |ok, bad, bits| Bin {
            ok,
            bad,
            bits,
            ..Bin::default()
        };
        let mut bins = vec![bin(100, 0, bit::GOOD); 40];
        bins.extend(vec![bin(0, 4, bit::BAD); 8]);
        let mut silent = lane_of(State::Silent, 0, bins.clone());
        silent.style = "new".to_owned();
        silent.backends = Vec::new();
        silent.last_error = "connect_failed/refused: long ".repeat(10);
        let mut shown = Shown::default();
        shown.apply(View {
            run_id: "01a22c71-a5ce-7341-a1d3-9c297ce0a076".to_owned(),
            scenario: "switchover".to_owned(),
            run_state: "running".to_owned(),
            is_whole: true,
            now_ns: 12_000_000_000,
            now_unix_ms: 12_000,
            newest_unix_ms: Some(11_600),
            planned_ns: 30_000_000_000,
            deadline_ns: 250_000_000,
            samples: 4_711,
            lost: 0,
            trouble: String::new(),
            missed: 3,
            lanes_left_out: 0,
            events_left_out: 0,
            backends: vec!["vm:36013".to_owned()],
            lanes: vec![lane_of(State::SomeBad, 0, bins), silent],
            agents: vec![AgentView {
                agent: "east-1".to_owned(),
                connected: true,
                clock_bound_ns: Some(240_000),
                spool_bytes: 10_000,
                unacked_samples: 12,
                behind_ns: Some(400_000_000),
            }],
            faults: Vec::new(),
            events: vec![Event {
                number: 1,
                at_ns: 10_000_000_000,
                kind: EventKind::Fault,
                text: "fault 1: stop backend-1: asked for".to_owned(),
            }],
        });
        shown
    }

    fn drawn(shown: &Shown, width: u16, height: u16, look: Look, silent_ns: u64) -> Buffer {
        let area = Rect::new(0, 0, width, height);
        let size = (usize::from(width), usize::from(height));
        let lines = frame(shown, &mut Place::default(), look, silent_ns, size);
        assert_eq!(lines.len(), size.1);
        let mut buffer = Buffer::empty(area);
        let lines = &lines;
        Lines { lines, look }.render(area, &mut buffer);
        buffer
    }

    /// The signs alone.
    fn text(drawn: &Buffer) -> String {
        let width = usize::from(drawn.area.width).max(1);
        let rows = drawn.content.chunks(width);
        let rows = rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>());
        rows.map(|row| row.trim_end().to_owned() + "\n").collect()
    }

    #[test]
    fn eighty_columns() {
        insta::assert_snapshot!(text(&drawn(&shown(), 80, 16, PLAIN, 100_000_000)));
    }

    #[test]
    fn wide_and_with_blocks() {
        let look = Look {
            unicode: true,
            colour: true,
        };
        let drawn = drawn(&shown(), 120, 16, look, 100_000_000);
        insta::assert_snapshot!(format!("{drawn:?}"));
    }

    #[test]
    fn any_size_can_be_drawn_upon() {
        let shown = shown();
        for width in [0, 1, 2, 7, 20, 79, 300] {
            for height in [0, 1, 2, 3, 5, 9, 100] {
                for shown in [&shown, &Shown::default()] {
                    drawn(shown, width, height, PLAIN, 100_000_000);
                }
            }
        }
    }

    #[test]
    fn what_is_not_heard_is_not_called_answered() {
        let mut shown = shown();
        shown.lanes[0].told.state = State::Answered;
        let text = text(&drawn(&shown, 80, 16, PLAIN, 2 * SILENCE_NS));
        assert!(!text.contains("answered"), "{text}");
        assert!(text.contains("not known for 6.0 s"), "{text}");
    }
}
