-- What may run, by its virtual time; the name of messages without a group is ''. Those that come in their order stand in two
-- rows, of those that are read and of those that come back, where the first one leaves at no cost; the others are in a heap.
local function new_line()
  local row, at, first, first_tag = {}, 1, nil, nil
  local back, from, to = {}, 1, 0
  local heap, size = {}, 0
  local function precedes(tag, name, other_tag, other) return tag < other_tag or tag == other_tag and name < other end
  local function before(a, tag, name) return precedes(a.tag, a.name, tag, name) end

  local function leave_heap()
    local top, last, hole = heap[1], heap[size], 1
    heap[size] = nil
    size = size - 1
    while size > 0 do
      local child = 2 * hole
      if child < size and before(heap[child + 1], heap[child].tag, heap[child].name) then child = child + 1 end
      if child > size or not before(heap[child], last.tag, last.name) then
        heap[hole] = last
        break
      end
      heap[hole], hole = heap[child], child
    end
    return top.name, top.tag
  end

  return {
    -- Remove the one that is next; returns its name and tag, or nil.
    take = function()
      if not first then
        first = row[at]
        first_tag = first and tonumber(row[at + 1])
      end
      local name, tag, is_back = first, first_tag, false
      if from < to and (not name or precedes(back[from + 1], back[from], tag, name)) then
        name, tag, is_back = back[from], back[from + 1], true
      end
      if size > 0 and (not name or before(heap[1], tag, name)) then return leave_heap() end
      if is_back then
        from = from + 2
      elseif name then
        at, first = at + 2, nil
      end
      return name, tag
    end,
    -- Add those that come after all others that were appended: {name, tag, …}, in order.
    append = function(more)
      if at > #row then
        row, at = more, 1
      else
        for i = 1, #more do row[#row + 1] = more[i] end
      end
    end,
    add = function(name, tag)
      if from > to or not precedes(tag, name, back[to], back[to - 1]) then
        back[to + 1], back[to + 2] = name, tag
        to = to + 2
        return
      end
      size = size + 1
      local hole, above = size, math.floor(size / 2)
      while hole > 1 and not before(heap[above], tag, name) do
        heap[hole], hole, above = heap[above], above, math.floor(above / 2)
      end
      heap[hole] = { tag = tag, name = name }
    end,
    -- Those that came back and still stand: {tag, name, …}.
    returned = function()
      local all = {}
      local function note(tag, name)
        if name ~= '' then all[#all + 1], all[#all + 2] = tag, name end
      end
      for i = from, to, 2 do note(back[i + 1], back[i]) end
      for i = 1, size do note(heap[i].tag, heap[i].name) end
      return all
    end,
  }
end
