"""Tools as servers of the Model Context Protocol offer them: names, descriptions and schemas like
those of servers for files, git, GitHub, Slack, browsers and databases."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def _text(description: str, **words: Any) -> Schema:
    return {"type": "string", "description": description, **words}


def _tool(name_: str, description: str, optional: tuple[str, ...] = (), **fields: Schema) -> Schema:
    return {"name": name_, "description": description,
            "parameters": {"type": "object", "properties": fields, "additionalProperties": False,
                           "required": [field for field in fields if field not in optional]}}


PATH = _text("Absolute path of a file, inside of an allowed directory", minLength=1, maxLength=4096)
REPO = _text("Name of the repository", pattern="^[a-zA-Z0-9._-]{1,100}$")
OWNER = _text("Account that owns the repository", pattern="^[a-zA-Z0-9-]{1,39}$")
PAGE: Schema = {"type": "integer", "minimum": 1, "maximum": 10000, "description": "Page of results"}
CHANNEL = _text("ID of the channel", pattern="^[CGD][A-Z0-9]{8,10}$")
SHA = _text("Commit", pattern="^[a-f0-9]{40}$")
TITLE, BODY = _text("Title", minLength=1, maxLength=256), _text("Text", maxLength=65536)
STATE: Schema = {"type": "string", "enum": ["open", "closed", "all"]}
FLAG: Schema = {"type": "boolean"}


def _list(items: Schema, most: int) -> Schema:
    return {"type": "array", "items": items, "maxItems": most}


FILES = [
    _tool("read_file", "Reads a file as text.", ("head", "tail"), path=PATH, head=PAGE, tail=PAGE),
    _tool("read_multiple_files", "Reads several files.", paths=_list(PATH, 50)),
    _tool("write_file", "Creates or overwrites a file.", path=PATH,
          content=_text("What it will hold", maxLength=100000)),
    _tool("edit_file", "Replaces lines of a file.", ("dry_run",), path=PATH, dry_run=FLAG,
          edits=_list({"type": "object", "properties": {"old": _text("Old", minLength=1),
                                                        "new": _text("New")},
                       "required": ["old", "new"], "additionalProperties": False}, 100)),
    _tool("create_directory", "Creates a directory.", path=PATH),
    _tool("list_directory", "Lists a directory.", path=PATH),
    _tool("move_file", "Moves or renames.", source=PATH, destination=PATH),
    _tool("search_files", "Searches for names.", ("exclude",), path=PATH,
          pattern=_text("Glob", minLength=1, maxLength=255),
          exclude=_list(_text("Glob", maxLength=255), 20)),
]
GIT = [
    _tool("git_status", "Shows the state of the working tree.", repo_path=PATH),
    _tool("git_diff", "Shows changes between two commits.", ("lines",), repo_path=PATH,
          target=_text("Branch or commit", minLength=1, maxLength=250), lines=PAGE),
    _tool("git_commit", "Records changes.", repo_path=PATH,
          message=_text("Message", minLength=1, maxLength=5000)),
    _tool("git_add", "Stages files.", repo_path=PATH, files=_list(PATH, 1000)),
    _tool("git_show", "Shows a commit.", repo_path=PATH, revision=SHA),
    _tool("git_branch", "Creates a branch.", ("base",), repo_path=PATH,
          name=_text("Name", pattern="^[A-Za-z0-9][A-Za-z0-9._/-]{0,200}$"), base=SHA),
]
GITHUB = [
    _tool("create_issue", "Creates an issue.", ("body", "labels", "assignees"), owner=OWNER,
          repo=REPO, title=TITLE, body=BODY, labels=_list(_text("Label", maxLength=50), 100),
          assignees=_list(OWNER, 10)),
    _tool("list_issues", "Lists issues.", ("state", "since", "page"), owner=OWNER, repo=REPO,
          state=STATE, since=_text("Not before", format="date-time"), page=PAGE),
    _tool("create_pull_request", "Opens a pull request.", ("body", "draft"), owner=OWNER, repo=REPO,
          title=TITLE, body=BODY, head=_text("From", minLength=1, maxLength=250),
          base=_text("Into", minLength=1, maxLength=250), draft=FLAG),
    _tool("merge_pull_request", "Merges.", ("commit_title",), owner=OWNER, repo=REPO, number=PAGE,
          commit_title=TITLE, method={"type": "string", "enum": ["merge", "squash", "rebase"]}),
    _tool("get_file_contents", "Reads a file.", ("ref",), owner=OWNER, repo=REPO, path=PATH,
          ref=_text("Branch, tag or commit", maxLength=250)),
    _tool("search_code", "Searches for code.", ("page",), q=_text("Query", minLength=1,
                                                                  maxLength=256), page=PAGE),
]
SLACK = [
    _tool("slack_post_message", "Posts a message.", channel_id=CHANNEL,
          text=_text("The message", minLength=1, maxLength=40000)),
    _tool("slack_reply_to_thread", "Replies.", channel_id=CHANNEL,
          thread_ts=_text("Time of the parent", pattern="^[0-9]{10}\\.[0-9]{6}$"),
          text=_text("The message", minLength=1, maxLength=40000)),
    _tool("slack_add_reaction", "Adds an emoji.", channel_id=CHANNEL,
          reaction=_text("Name, without colons", pattern="^[a-z0-9_+-]{1,100}$")),
    _tool("slack_get_users", "Lists users.", ("cursor",), cursor=_text("Cursor", maxLength=500)),
]
BROWSER = [
    _tool("browser_navigate", "Opens a page.", url=_text("URL", pattern="^https?://.{1,2000}$")),
    _tool("browser_click", "Clicks.", ("modifiers",), element=_text("Description", maxLength=500),
          ref=_text("Reference", pattern="^e[0-9]{1,6}$"),
          modifiers=_list({"type": "string", "enum": ["Alt", "Control", "Meta", "Shift"]}, 4)),
    _tool("browser_type", "Types a text.", ("submit",), ref=_text("Reference", maxLength=20),
          text=_text("What to type", maxLength=10000), submit=FLAG),
    _tool("browser_wait", "Waits.", seconds={"type": "number"}),
]
DATABASE = [
    _tool("query", "Runs a statement that reads.", ("params", "timeout_ms"),
          sql=_text("Statement", minLength=1, maxLength=20000),
          params=_list({"type": ["string", "number", "boolean", "null"]}, 100), timeout_ms=PAGE),
    _tool("describe_table", "Columns of a table.",
          table=_text("Name", pattern="^[a-zA-Z_][a-zA-Z0-9_]{0,62}$")),
]
SERVERS = {"files": FILES, "git": GIT, "github": GITHUB, "slack": SLACK, "browser": BROWSER,
           "database": DATABASE, "all": FILES + GIT + GITHUB + SLACK + BROWSER + DATABASE}


def call_schema(tools: list[Schema]) -> Schema:
    """The schema of one call of any of the tools."""
    return {"anyOf": [{"type": "object", "properties": {"name": {"const": tool["name"]},
                                                        "arguments": tool["parameters"]},
                       "required": ["name", "arguments"], "additionalProperties": False}
                      for tool in tools]}
