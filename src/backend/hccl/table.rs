//! Rank tables: the JSON files that say which rank sits on which device of which host.
//!
//! | `version` | `server_list` or `rank_list` | numbers are |
//! | --- | --- | --- |
//! | `"1.0"` (910, A2, A3) | servers with `server_id` and devices: `device_id`, `rank_id`, `device_ip`, ports | text |
//! | `"1.2"` (A3 super pods) | as 1.0, devices with `super_device_id`, and `super_pod_list` | text |
//! | `"2.0"` (950) | ranks: `rank_id`, `local_id`, `device_id`, `level_list` | numbers |
//! | none, with `group_list` (910) | groups of instances with `devices`; ranks count in their order | text |
//!
//! A table is read and checked before HCCL sees its path, because HCCL's own messages name neither field nor line.
//! Fields that this library does not need are left to HCCL.

use crate::error::{Error, ErrorKind, Result};
use jsonc_parser::ast::{Object, ObjectProp, Value};
use jsonc_parser::common::{Range, Ranged};
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};
use std::collections::HashSet;
use std::path::Path;

/// Most ranks of a table, as HCCL counts.
const MAX_RANKS: u64 = 65_536;
/// Most bytes of a file that is read.
const MAX_BYTES: u64 = 64 << 20;

/// What a table says, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RankTable {
    /// Each rank's device, by rank.
    pub(crate) ranks: Vec<Place>,
    /// Hosts, in the order of the file; a table of version 2.0 does not name them.
    pub(crate) servers: Vec<String>,
}

/// Where one rank sits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Index into the servers.
    pub(crate) server: usize,
    /// Physical number of the device.
    pub(crate) device: u32,
}

impl RankTable {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// `InvalidArgument` that names the file, the line and the field.
    pub(crate) fn read(path: &Path) -> Result<RankTable> {
        let at = |problem: String| {
            Error::new(ErrorKind::Environment {
                variable: "RANK_TABLE_FILE".into(),
                problem: format!("names {}: {problem}", path.display()),
            })
            .hint("see docs/ascend.md for both schemas; `hccl doctor` checks a table too")
        };
        let bytes = std::fs::metadata(path).map_err(|error| at(error.to_string()))?.len();
        if bytes > MAX_BYTES {
            return Err(at(format!("{bytes} bytes are more than a rank table has")));
        }
        let text = std::fs::read_to_string(path).map_err(|error| at(error.to_string()))?;
        RankTable::parse(&text).map_err(at)
    }

    /// Checks the text of a table; the error begins with the line.
    pub(crate) fn parse(text: &str) -> Result<RankTable, String> {
        let strict = ParseOptions {
            allow_comments: false,
            allow_loose_object_property_names: false,
            allow_trailing_commas: false,
            allow_missing_commas: false,
            allow_single_quoted_strings: false,
            allow_hexadecimal_numbers: false,
            allow_unary_plus_numbers: false,
            allow_bare_decimal_point_numbers: false,
            allow_non_finite_numbers: false,
            allow_extended_string_escapes: false,
        };
        let parsed = parse_to_ast(text, &CollectOptions::default(), &strict);
        let parsed = parsed.map_err(|error| format!("line {}: {}", error.line_display(), error.kind()))?;
        let file = File { text };
        let Some(root) = parsed.value else { return Err("line 1: the file is empty".into()) };
        let root = file.object(&root, "the file")?;
        let version = root.find("version").map(|value| file.text(value, "version")).transpose()?;
        match version.as_deref() {
            Some("1.0" | "1.2") => file.servers(&root),
            Some("2.0") => file.ranks(&root),
            None if root.find("group_list").is_some() => file.groups(&root),
            None => Err(root.missing("version")),
            Some(other) => {
                let at = root.find("version").map_or(1, |value| file.line(value.range()));
                Err(format!("line {at}: version is {other:?}, which is none of \"1.0\", \"1.2\" and \"2.0\""))
            }
        }
    }
}

/// The text of a table, for lines.
struct File<'a> {
    text: &'a str,
}

/// An object and where it stands.
struct Fields<'a, 'b> {
    file: &'b File<'a>,
    object: &'b Object<'a>,
    what: String,
}

/// A rank as a table names it, with the line.
struct Found {
    rank: u64,
    line: usize,
    place: Place,
}

impl<'a> Fields<'a, '_> {
    fn find(&self, name: &str) -> Option<&Value<'a>> {
        let named = |property: &&ObjectProp<'a>| property.name.as_str() == name;
        self.object.properties.iter().find(named).map(|property| &property.value)
    }

    fn need(&self, name: &str) -> Result<&Value<'a>, String> {
        self.find(name).ok_or_else(|| self.missing(name))
    }

    fn missing(&self, name: &str) -> String {
        format!("line {}: {} has no {name}", self.file.line(self.object.range), self.what)
    }

    /// The name of a field as messages give it.
    fn field(&self, name: &str) -> String {
        if self.what == "the file" { name.to_owned() } else { format!("{} of {}", name, self.what) }
    }

    fn list(&self, name: &str) -> Result<&[Value<'a>], String> {
        let value = self.need(name)?;
        let array = value.as_array().ok_or_else(|| self.file.wrong(value, &self.field(name), "a list"))?;
        if array.elements.is_empty() {
            return Err(format!("line {}: {} is empty", self.file.line(array.range), self.field(name)));
        }
        Ok(&array.elements)
    }

    /// A number that is written as text, as schemas before 2.0 do.
    fn number_text(&self, name: &str, max: u64) -> Result<u64, String> {
        let value = self.need(name)?;
        let text = self.file.text(value, &self.field(name))?;
        self.file.digits(value, &text, &self.field(name), max)
    }

    /// A number that is one, as schema 2.0 has it.
    fn number(&self, name: &str, max: u64) -> Result<u64, String> {
        let value = self.need(name)?;
        let number = value.as_number_lit();
        let number = number.ok_or_else(|| self.file.wrong(value, &self.field(name), "a number without quotes"))?;
        self.file.digits(value, number.value, &self.field(name), max)
    }

    fn text(&self, name: &str) -> Result<String, String> {
        self.file.text(self.need(name)?, &self.field(name))
    }

    fn line_of(&self, name: &str) -> usize {
        self.file.line(self.find(name).map_or(self.object.range, Ranged::range))
    }
}

impl<'a> File<'a> {
    fn line(&self, range: Range) -> usize {
        let before = self.text.as_bytes().iter().take(range.start);
        1 + before.filter(|byte| **byte == b'\n').count()
    }

    fn wrong(&self, value: &Value<'a>, field: &str, wanted: &str) -> String {
        let found = match value {
            Value::StringLit(text) => format!("the text {:?}", text.value),
            Value::NumberLit(number) => format!("the number {}", number.value),
            Value::BooleanLit(truth) => format!("{}", truth.value),
            Value::Object(_) => "an object".into(),
            Value::Array(_) => "a list".into(),
            Value::NullKeyword(_) => "null".into(),
        };
        format!("line {}: {field} is {found}, it must be {wanted}", self.line(value.range()))
    }

    fn object<'b>(&'b self, value: &'b Value<'a>, what: &str) -> Result<Fields<'a, 'b>, String> {
        let object = value.as_object().ok_or_else(|| self.wrong(value, what, "an object"))?;
        let mut names = HashSet::new();
        if let Some(twice) = object.properties.iter().find(|property| !names.insert(property.name.as_str())) {
            return Err(format!("line {}: {what} has {} twice", self.line(twice.range), twice.name.as_str()));
        }
        Ok(Fields { file: self, object, what: what.to_owned() })
    }

    fn text(&self, value: &Value<'a>, field: &str) -> Result<String, String> {
        match value.as_string_lit() {
            Some(text) => Ok(text.value.clone().into_owned()),
            None => Err(self.wrong(value, field, "text in quotes")),
        }
    }

    fn digits(&self, value: &Value<'a>, text: &str, field: &str, max: u64) -> Result<u64, String> {
        let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse::<u64>() {
            Ok(number) if plain && number <= max => Ok(number),
            _ => Err(self.wrong(value, field, &format!("a whole number up to {max}"))),
        }
    }

    fn completed(&self, root: &Fields<'a, '_>) -> Result<(), String> {
        match root.text("status")?.as_str() {
            "completed" => Ok(()),
            other => {
                let line = root.line_of("status");
                Err(format!("line {line}: status is {other:?}: the table is not ready before it is \"completed\""))
            }
        }
    }

    /// Schemas 1.0 and 1.2.
    fn servers(&self, root: &Fields<'a, '_>) -> Result<RankTable, String> {
        self.completed(root)?;
        let list = root.list("server_list")?;
        let count = root.number_text("server_count", MAX_RANKS)?;
        self.counted(root, "server_count", count, list.len(), "server_list")?;
        let (mut servers, mut found) = (Vec::new(), Vec::new());
        for (index, server) in list.iter().enumerate() {
            let server = self.object(server, &format!("server {index}"))?;
            let id = server.text("server_id")?;
            if id.is_empty() || id.len() > 64 || servers.contains(&id) {
                let line = server.line_of("server_id");
                return Err(format!(
                    "line {line}: server_id {id:?} is used twice, empty, or longer than 64 characters"
                ));
            }
            servers.push(id);
            for device in server.list("device")? {
                let device = self.object(device, &format!("a device of server {index}"))?;
                found.push(self.device(&device, index)?);
            }
        }
        self.finish(root, servers, found)
    }

    fn device(&self, device: &Fields<'a, '_>, server: usize) -> Result<Found, String> {
        for port in ["device_port", "host_port", "backup_device_port"] {
            if device.find(port).is_some() && device.number_text(port, 65_535)? == 0 {
                return Err(format!("line {}: {port} is 0, ports are 1 to 65535", device.line_of(port)));
            }
        }
        let id = device.number_text("device_id", u64::from(u16::MAX))?;
        let rank = device.number_text("rank_id", MAX_RANKS - 1)?;
        Ok(Found { rank, line: device.line_of("rank_id"), place: Place { server, device: id as u32 } })
    }

    /// The old template of 910: ranks count in the order of the devices.
    fn groups(&self, root: &Fields<'a, '_>) -> Result<RankTable, String> {
        self.completed(root)?;
        let (mut servers, mut found): (Vec<String>, Vec<Found>) = (Vec::new(), Vec::new());
        for group in root.list("group_list")? {
            let group = self.object(group, "a group")?;
            for instance in group.list("instance_list")? {
                let instance = self.object(instance, "an instance")?;
                let id = instance.text("server_id")?;
                let server = servers.iter().position(|known| *known == id).unwrap_or_else(|| {
                    servers.push(id);
                    servers.len() - 1
                });
                for device in instance.list("devices")? {
                    let device = self.object(device, "a device")?;
                    let id = device.number_text("device_id", u64::from(u16::MAX))? as u32;
                    let rank = found.len() as u64;
                    found.push(Found { rank, line: device.line_of("device_id"), place: Place { server, device: id } });
                }
            }
        }
        self.finish(root, servers, found)
    }

    /// Schema 2.0.
    fn ranks(&self, root: &Fields<'a, '_>) -> Result<RankTable, String> {
        if root.find("status").is_some() {
            self.completed(root)?;
        }
        let list = root.list("rank_list")?;
        let count = root.number("rank_count", MAX_RANKS)?;
        self.counted(root, "rank_count", count, list.len(), "rank_list")?;
        let mut found = Vec::new();
        for (index, rank) in list.iter().enumerate() {
            let rank = self.object(rank, &format!("entry {index} of rank_list"))?;
            let id = rank.number("rank_id", MAX_RANKS - 1)?;
            let device = rank.number("device_id", u64::from(u16::MAX))? as u32;
            if rank.find("local_id").is_some() {
                rank.number("local_id", MAX_RANKS - 1)?;
            }
            found.push(Found { rank: id, line: rank.line_of("rank_id"), place: Place { server: 0, device } });
        }
        // Hosts are known to the topology file that HCCL reads beside this one.
        self.finish(root, Vec::new(), found)
    }

    fn counted(&self, root: &Fields<'a, '_>, name: &str, count: u64, len: usize, list: &str) -> Result<(), String> {
        if count == len as u64 {
            return Ok(());
        }
        Err(format!("line {}: {name} is {count}, but {list} has {len} entries", root.line_of(name)))
    }

    /// Ranks must be 0, 1, 2 and so on, each once, and no two on one device of one host.
    fn finish(&self, root: &Fields<'a, '_>, servers: Vec<String>, mut found: Vec<Found>) -> Result<RankTable, String> {
        found.sort_by_key(|found| (found.rank, found.line));
        for (index, entry) in found.iter().enumerate() {
            let Found { rank, line, .. } = *entry;
            if let Some(before) = index.checked_sub(1).map(|before| &found[before]).filter(|before| before.rank == rank)
            {
                return Err(format!("line {line}: rank_id {rank} is used twice, first in line {}", before.line));
            }
            if rank != index as u64 {
                return Err(format!("line {line}: rank_id is {rank}, but no device has rank_id {index}"));
            }
        }
        let mut places = HashSet::new();
        // Without hosts the same number may well be two devices.
        let twice =
            found.iter().find(|found| !servers.is_empty() && !places.insert((found.place.server, found.place.device)));
        if let Some(Found { line, place, .. }) = twice {
            return Err(format!("line {line}: device_id {} is used twice on one server", place.device));
        }
        if found.len() as u64 > MAX_RANKS {
            return Err(format!(
                "line {}: {} ranks are more than HCCL takes",
                self.line(root.object.range),
                found.len()
            ));
        }
        Ok(RankTable { ranks: found.into_iter().map(|found| found.place).collect(), servers })
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
