//! Numbers, money and tables as people read them. Text that may be wide (titles, names) belongs in the last column,
//! which needs no padding.

use std::time::Duration;

use rules::money::Money;

/// Which side of its column a cell leans to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lean {
    Left,
    Right,
}

/// Columns two blanks apart, as wide as their widest cell.
#[derive(Debug)]
pub struct Table {
    columns: Vec<Lean>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(heads: &[(&str, Lean)]) -> Self {
        let head = heads.iter().map(|(name, _)| (*name).to_owned()).collect();
        Self { columns: heads.iter().map(|(_, lean)| *lean).collect(), rows: vec![head] }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub fn render(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&self.columns).zip(&widths).map(|((cell, lean), width)| match lean {
                Lean::Left => format!("{cell:<width$}"),
                Lean::Right => format!("{cell:>width$}"),
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        self.rows.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// `1234567` as `1,234,567`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `149900` fen as `1499.00 CNY`.
pub fn money(money: Money) -> String {
    let digits = usize::try_from(money.currency.exponent()).unwrap_or(0);
    let text = format!("{:0>width$}", money.amount, width = digits + 1);
    let (whole, minor) = text.split_at(text.len().saturating_sub(digits));
    let point = if minor.is_empty() { "" } else { "." };
    format!("{whole}{point}{minor} {}", money.currency)
}

/// A duration with the unit that suits it.
pub fn span(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match duration {
        _ if seconds < 0.001 => format!("{:.0} µs", seconds * 1e6),
        _ if seconds < 0.01 => format!("{:.1} ms", seconds * 1e3),
        _ if seconds < 1.0 => format!("{:.0} ms", seconds * 1e3),
        _ => format!("{seconds:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_money_has_its_point() {
        assert_eq!(["0", "999", "1,000", "12,345,678"], [0, 999, 1_000, 12_345_678].map(thousands)[..]);
        let of = |amount, currency: &str| money(Money { amount, currency: currency.parse().unwrap() });
        assert_eq!(of(149_900, "CNY"), "1499.00 CNY");
        assert_eq!(of(5, "EUR"), "0.05 EUR");
        assert_eq!(of(1_499, "JPY"), "1499 JPY");
    }

    #[test]
    fn spans_take_the_unit_that_suits_them() {
        let spans = [250, 1_500, 25_000, 2_500_000].map(|us| span(Duration::from_micros(us)));
        assert_eq!(spans, ["250 µs", "1.5 ms", "25 ms", "2.5 s"]);
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&[("ID", Lean::Left), ("STOCK", Lean::Right), ("NAME", Lean::Left)]);
        table.row(["a".into(), "7".into(), "茅台".into()]);
        assert_eq!(table.render(), "ID  STOCK  NAME\na       7  茅台");
    }
}
