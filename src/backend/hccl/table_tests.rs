//! Rank tables, good and bad.

use super::*;

const TWO_HOSTS: &str = r#"{
  "version": "1.0",
  "status": "completed",
  "server_count": "2",
  "server_list": [
    { "server_id": "a", "device": [
      { "device_id": "4", "device_ip": "192.0.2.1", "rank_id": "1" },
      { "device_id": "3", "device_ip": "192.0.2.2", "rank_id": "0", "device_port": "16667" } ] },
    { "server_id": "b", "device": [
      { "device_id": "4", "device_ip": "192.0.2.3", "rank_id": "2" } ] }
  ]
}"#;

const NUMBERS: &str = r#"{
  "version": "2.0", "status": "completed",
  "rank_count": 2,
  "rank_list": [
    { "rank_id": 0, "local_id": 0, "device_id": 5, "level_list": [ { "net_layer": 0 } ] },
    { "rank_id": 1, "local_id": 1, "device_id": 6 }
  ]
}"#;

/// The error of a table in which `from` is replaced by `to`.
fn broken(table: &str, from: &str, to: &str) -> String {
    assert!(table.contains(from), "{from}");
    RankTable::parse(&table.replacen(from, to, 1)).unwrap_err()
}

#[test]
fn places_are_in_the_order_of_ranks() {
    let table = RankTable::parse(TWO_HOSTS).unwrap();
    assert_eq!(table.servers, ["a", "b"]);
    let places: Vec<(usize, u32)> = table.ranks.iter().map(|place| (place.server, place.device)).collect();
    assert_eq!(places, [(0, 3), (0, 4), (1, 4)]);
    let devices = |table: RankTable| table.ranks.iter().map(|place| place.device).collect::<Vec<_>>();
    assert_eq!(devices(RankTable::parse(NUMBERS).unwrap()), [5, 6]);
    let pods = TWO_HOSTS.replacen("1.0", "1.2", 1);
    assert_eq!(RankTable::parse(&pods).unwrap(), table);
}

#[test]
fn the_old_template_counts_ranks_in_order() {
    let old = r#"{ "status": "completed", "group_count": "1", "group_list": [ { "group_name": "hccl_world_group",
      "instance_count": "2", "device_count": "3", "instance_list": [
        { "pod_name": "x", "server_id": "b", "devices": [ { "device_id": "1", "device_ip": "192.0.2.1" } ] },
        { "pod_name": "y", "server_id": "a", "devices": [ { "device_id": "0" }, { "device_id": "1" } ] } ] } ] }"#;
    let table = RankTable::parse(old).unwrap();
    let places: Vec<(usize, u32)> = table.ranks.iter().map(|place| (place.server, place.device)).collect();
    assert_eq!((places, table.servers), (vec![(0, 1), (1, 0), (1, 1)], vec!["b".to_owned(), "a".to_owned()]));
}

#[test]
fn a_message_names_the_line_and_the_field() {
    let cases = [
        (TWO_HOSTS, r#""rank_id": "2""#, r#""rank_id": "1""#, "line 10: rank_id 1 is used twice, first in line 7"),
        (TWO_HOSTS, r#""rank_id": "2""#, r#""rank_id": "7""#, "line 10: rank_id is 7, but no device has rank_id 2"),
        (TWO_HOSTS, r#", "rank_id": "2""#, "", "line 10: a device of server 1 has no rank_id"),
        (TWO_HOSTS, r#""rank_id": "2""#, r#""rank_id": 2"#, "line 10: rank_id of a device of server 1 is the number 2"),
        (TWO_HOSTS, r#""rank_id": "2""#, r#""rank_id": "-2""#, "line 10: rank_id of a device of server 1 is the text"),
        (TWO_HOSTS, r#""device_id": "3""#, r#""device_id": "4""#, "line 7: device_id 4 is used twice on one server"),
        (TWO_HOSTS, r#""device_id": "3""#, r#""device_id": "x""#, "line 8: device_id of a device of server 0"),
        (TWO_HOSTS, "16667", "99999", "line 8: device_port of a device of server 0"),
        (TWO_HOSTS, "16667", "0", "line 8: device_port is 0"),
        (
            TWO_HOSTS,
            r#""server_count": "2""#,
            r#""server_count": "3""#,
            "line 4: server_count is 3, but server_list has 2",
        ),
        (TWO_HOSTS, r#""server_id": "b""#, r#""server_id": "a""#, "line 9: server_id \"a\" is used twice"),
        (TWO_HOSTS, "completed", "initializing", "line 3: status is \"initializing\""),
        (TWO_HOSTS, r#""version": "1.0","#, r#""version": "3.0","#, "line 2: version is \"3.0\""),
        (TWO_HOSTS, r#""version": "1.0","#, r#""version": 1.0,"#, "line 2: version is the number 1.0"),
        (TWO_HOSTS, r#""version": "1.0","#, "", "line 1: the file has no version"),
        (TWO_HOSTS, r#""server_list": ["#, r#""servers": ["#, "line 1: the file has no server_list"),
        (
            TWO_HOSTS,
            r#""status": "completed","#,
            r#""status": "completed", "status": "x","#,
            "line 3: the file has status twice",
        ),
        (NUMBERS, r#""rank_count": 2"#, r#""rank_count": 3"#, "line 3: rank_count is 3, but rank_list has 2"),
        (NUMBERS, r#""rank_count": 2"#, r#""rank_count": "2""#, "line 3: rank_count is the text \"2\""),
        (NUMBERS, r#""rank_id": 1"#, r#""rank_id": 0"#, "line 6: rank_id 0 is used twice, first in line 5"),
        (NUMBERS, r#""device_id": 6"#, r#""device_id": 6.5"#, "line 6: device_id of entry 1 of rank_list"),
    ];
    for (table, from, to, expected) in cases {
        let error = broken(table, from, to);
        assert!(error.starts_with(expected), "{error}\ndoes not start with\n{expected}");
    }
}

#[test]
fn what_is_no_json_is_told_with_its_line() {
    for (text, line) in
        [("", "line 1"), ("{\n\n  \"version\": \n}", "line "), ("{ // no\n}", "line 1"), ("[1, 2,]", "line 1")]
    {
        let error = RankTable::parse(text).unwrap_err();
        assert!(error.starts_with(line), "{text:?}: {error}");
    }
    let deep = "[".repeat(200_000);
    assert!(RankTable::parse(&deep).is_err());
    assert!(RankTable::parse("[]").unwrap_err().contains("the file is a list"));
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = RankTable::read(Path::new("/nowhere/table.json")).unwrap_err().to_string();
    assert!(error.contains("RANK_TABLE_FILE") && error.contains("/nowhere/table.json"), "{error}");
}
