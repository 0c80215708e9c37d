//! What rank 0 says: a table, CSV or JSON, and a picture.

use std::io::{self, Write};

use hccl::OpKind;
use serde::Serialize;

use super::measure::Point;
use super::plan::{Format, Plan};
use super::{Problem, plot};

/// The columns that all benchmarks of one protocol share.
const COLUMNS: &str = "peer,op,ranks,bytes,median_us,p99_us,p10_us,b2b_us";

/// See the module page.
pub(crate) struct Report<'a> {
    plan: &'a Plan,
    ranks: usize,
    out: Box<dyn Write>,
    rows: Vec<Row>,
}

/// One point with everything derived from it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) operation: &'static str,
    pub(crate) ranks: usize,
    pub(crate) bytes: usize,
    pub(crate) count: usize,
    pub(crate) dtype: &'static str,
    pub(crate) op: Option<&'static str>,
    pub(crate) median_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p10_us: f64,
    pub(crate) b2b_us: f64,
    /// Gigabytes (10^9) a second: bytes over the median.
    pub(crate) algbw: f64,
    /// The same, scaled by what the busiest link carries.
    pub(crate) busbw: f64,
    pub(crate) wrong: Option<u64>,
}

impl<'a> Report<'a> {
    /// # Errors
    /// When the sink is gone.
    pub(crate) fn new(plan: &'a Plan, ranks: usize, out: Box<dyn Write>) -> Result<Report<'a>, Problem> {
        let mut report = Report { plan, ranks, out, rows: Vec::new() };
        if plan.format == Format::Csv {
            report.write(&format!("{COLUMNS}\n"))?;
        }
        Ok(report)
    }

    /// # Errors
    /// When the sink is gone.
    pub(crate) fn add(&mut self, point: Point) -> Result<(), Problem> {
        let row = self.row(&point);
        let text = match self.plan.format {
            Format::Table if self.rows.last().is_none_or(|last| last.operation != row.operation) => {
                self.heading(&row) + &line(&row)
            }
            Format::Table => line(&row),
            Format::Csv => self.csv(&point),
            Format::Json => String::new(),
        };
        self.rows.push(row);
        self.write(&text)
    }

    /// # Errors
    /// When the sink is gone or the picture cannot be written.
    pub(crate) fn finish(mut self) -> Result<(), Problem> {
        if self.plan.format == Format::Json {
            let json = serde_json::to_string_pretty(&self.rows);
            let json = json.map_err(|error| Problem { text: format!("--json: {error}"), code: 1 })?;
            self.write(&(json + "\n"))?;
        }
        self.plan.plot.as_ref().map_or(Ok(()), |path| plot::write(path, &self.rows))
    }

    fn row(&self, point: &Point) -> Row {
        let Point { operation, bytes, elements, times, wrong } = *point;
        let algbw = if times.median > 0.0 { bytes as f64 / times.median / 1e3 } else { 0.0 };
        Row {
            operation: operation.name(),
            ranks: self.ranks,
            bytes,
            count: elements,
            dtype: self.plan.dtype.name(),
            op: operation.reduces().then(|| OpKind::name(self.plan.op)),
            median_us: times.median,
            p99_us: times.p99,
            p10_us: times.p10,
            b2b_us: times.back_to_back,
            algbw,
            busbw: algbw * operation.bus_factor(self.ranks),
            wrong,
        }
    }

    fn csv(&self, point: &Point) -> String {
        let (name, op) = (&self.plan.name, point.operation.csv_name(self.plan.dtype.name()));
        let (ranks, bytes, times) = (self.ranks, point.bytes, point.times);
        let (median, p99, p10, b2b) = (times.median, times.p99, times.p10, times.back_to_back);
        format!("{name},{op},{ranks},{bytes},{median:.3},{p99:.3},{p10:.3},{b2b:.3}\n")
    }

    fn heading(&self, row: &Row) -> String {
        let Plan { slices, threads, in_place, .. } = *self.plan;
        let kind = if threads { "threads" } else { "processes" };
        let memory = if slices { "plain slices" } else { "device buffers" };
        let place = if in_place { ", in place" } else { "" };
        let gap = if self.rows.is_empty() { "" } else { "\n" };
        format!(
            "{gap}# {}: {} {kind}, {memory}{place}; times in us, bandwidths in GB/s\n{:>12} {:>12} {:>6} {:>5} {:>11} {:>11} {:>8} {:>8} {:>6}\n",
            row.operation, self.ranks, "bytes", "count", "type", "op", "median", "p99", "algbw", "busbw", "wrong"
        )
    }

    fn write(&mut self, text: &str) -> Result<(), Problem> {
        let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
        match written {
            // Who reads no more has seen enough.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(Problem { text: format!("cannot write the report: {error}"), code: 1 })
            }
            _ => Ok(()),
        }
    }
}

fn line(row: &Row) -> String {
    let op = row.op.unwrap_or("-");
    let wrong = row.wrong.map_or_else(|| "-".to_owned(), |wrong| wrong.to_string());
    format!(
        "{:>12} {:>12} {:>6} {op:>5} {:>11.2} {:>11.2} {:>8.2} {:>8.2} {wrong:>6}\n",
        row.bytes, row.count, row.dtype, row.median_us, row.p99_us, row.algbw, row.busbw
    )
}
